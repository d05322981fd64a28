"""llama.cpp's own server in a Python process, with llama-server's flags: `python -m` this module MODEL.gguf.

It serves until SIGTERM or Ctrl-C. Clients need the key in LLAMA_API_KEY, if it is set.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import Any

KEY_VARIABLE = "LLAMA_API_KEY"
_HOW_OFTEN_S = 0.5
"""Windows does not interrupt a wait without an end."""
_DRAFT = "speculative.draft.mparams.path"
_NUMBERS = {
    ("-np", "--parallel"): ("n_parallel", "requests that run at once (slots)"),
    ("-c", "--ctx-size"): ("n_ctx", "tokens of all slots together; 0: the model's context"),
    ("-b", "--batch-size"): ("n_batch", "most tokens that one step takes"),
    ("-ub", "--ubatch-size"): ("n_ubatch", "most tokens that are computed at once"),
    ("-t", "--threads"): ("cpuparams.n_threads", "threads that compute"),
    ("--cache-reuse",): ("n_cache_reuse", "shortest run of cached tokens that is moved and used again"),
    ("--draft-max",): ("speculative.draft.n_max", "guesses per step of the draft model"),
    ("--port",): ("port", "port to listen on"),
}
_SWITCHES = {
    "--cache-prompt": ("cache_prompt", "use the KV of earlier prompts again"),
    "--metrics": ("endpoint_metrics", "serve /metrics"),
    "--slots": ("endpoint_slots", "serve /slots"),
}
_TEXTS = {
    ("-a", "--alias"): ("model_alias", "the model's name in requests"),
    ("--host",): ("hostnames", "address to listen on"),
    ("-md", "--model-draft"): (_DRAFT, "GGUF file of a draft model"),
}
_COLLECTIONS: dict[str, type[list[str]] | type[set[str]]] = {"model_alias": set, "hostnames": list}


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; what was not given is not set. An unknown flag ends the process with a message."""
    parser = argparse.ArgumentParser(
        prog="llama_server", description=__doc__, allow_abbrev=False, argument_default=argparse.SUPPRESS
    )
    parser.add_argument("model", metavar="MODEL.gguf", help="the model's file")
    for names, (target, about) in _NUMBERS.items():
        parser.add_argument(*names, dest=target, type=int, metavar="N", help=about)
    for name, (target, about) in _SWITCHES.items():
        parser.add_argument(name, dest=target, action=argparse.BooleanOptionalAction, help=about)
    for names, (target, about) in _TEXTS.items():
        parser.add_argument(*names, dest=target, metavar="TEXT", help=about)
    parser.set_defaults(port=8080)
    given = parser.parse_args(words)
    for file in filter(None, (given.model, getattr(given, _DRAFT, None))):
        if not Path(file).is_file():
            parser.error(f"argument MODEL.gguf: there is no file {file}")
    return given


def apply(given: argparse.Namespace, params: Any, api_key: str | None) -> None:  # noqa: ANN401 - untyped there
    """Set llama.cpp's parameters to what was given."""
    settings = vars(given) | {"model.path": given.model}
    del settings["model"]
    for target, value in settings.items():
        *parts, name = target.split(".")
        collect = _COLLECTIONS.get(target)
        setattr(reduce(getattr, parts, params), name, value if collect is None else collect([value]))
    if api_key:
        params.api_keys = [api_key]
    # By default a page of any web site that a user of this machine opens may call it.
    params.cors_origins = ""
    params.ui = False


def main() -> None:
    """Serve until a signal ends it."""
    given = parsed()
    # Here, so that `--help` and mistakes need not wait for it: it takes a second to load.
    import xllamacpp  # noqa: PLC0415

    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stopped.set())
    params = xllamacpp.CommonParams()
    apply(given, params, os.environ.pop(KEY_VARIABLE, None))
    if hasattr(given, _DRAFT):
        params.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
    server = xllamacpp.Server(params)
    print(f"serving on {server.listening_address}", flush=True)
    while not stopped.wait(_HOW_OFTEN_S):
        pass


if __name__ == "__main__":
    main()
