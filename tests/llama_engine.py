"""Starts and stops a real llama.cpp server with the demo model; tests/conftest.py makes a fixture of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from phasewise.fleet.engines.known_models import gguf_file
from tests.paths import ROOT
from tests.real_engine import MODEL, RunningEngine, free_port, stop_group, wait_until_ready


@contextmanager
def running_llama_cpp(log_file: Path, *flags: str) -> Iterator[RunningEngine]:
    """A server on a free port, with two slots unless the flags say otherwise."""
    home = Path(os.environ.get("PHASEWISE_HOME") or ROOT / ".phasewise")
    model = gguf_file(MODEL, home)
    if not model.is_file():
        fetch = (sys.executable, "-m", "phasewise.cli", "model", "fetch", MODEL, "--gguf")
        subprocess.run(fetch, env={**os.environ, "PHASEWISE_HOME": str(home)}, check=True)
    port = free_port()
    command = (
        *("setpriv", "--pdeathsig", "TERM", sys.executable, "-m", "phasewise.fleet.engines.llama_server"),
        *(str(model), "--alias", MODEL, "--port", str(port), "--metrics", "-np", "2", "-c", "4096"),
        *("-t", "1", *flags),
    )
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    base_url = f"http://127.0.0.1:{port}"
    try:
        wait_until_ready(process, base_url, log_file)
        yield RunningEngine(base_url, "http://127.0.0.1:9", MODEL, process.pid)
    finally:
        stop_group(process)
