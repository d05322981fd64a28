"""How large the code is, and how many of its files a request and a verdict run through.

    python tools/size.py [--checkout DIR] [--quick] [--check] [--json]

The last line is one JSON object. Counted: src_lines, src_tokens (as tokenize sees them, without comments
and line ends; a docstring is one token), src_files, benchmark_lines, test_lines, docs_words, commands (those
that `phasewise --help` lists; a group counts once), options (of all commands), duplicate_class_names (names
that more than one class has), longest_file, and the tokens and files of each package. Traced, as the median
of five runs: files_on_chat_path and files_on_verdict_path, files of ours in which a function ran, for one
streamed chat through a gateway and for `diagnose URL` of a gateway whose engine has a step record and a batch
cap that is too low; code that runs at import does not count. --checkout measures another clone; --quick
leaves the traced paths out; --check fails where something is above its ceiling in tools/size.toml.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import io
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
import tokenize
import tomllib
import urllib.request
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from overhead.arms import gateway_of  # noqa: E402
from script import end_in_order_when_told  # noqa: E402 - benchmarks are no package
from stress.processes import fake_engines, free_port, running, wait_until_ready  # noqa: E402

RUNS = 5
NOT_COUNTED = frozenset(
    {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENCODING,
        tokenize.ENDMARKER,
    }
)
COST = {
    "floor_s": 0.02,
    "knee_tokens": 128,
    "beyond_knee_s_per_token": 1e-4,
    "attention_s_per_token_pair": 0.0,
    "kv_read_s_per_token": 0.0,
    "per_request_s": 1e-3,
}
SHAPE = {"max_num_seqs": 16, "max_num_batched_tokens": 2048, "block_size": 16, "total_blocks": 4096}
TOO_FEW_SEQS = 4
CLIENTS = 12
ADMIN_KEY = "a-key-of-this-measurement"
WINDOW_S = 12.0
CHILD = "phasewise.gateway.processes.child"
"""The module of the process that serves; an older gateway served in the first one."""
TRACE_CHILD = f"import sys\nif {CHILD!r} in sys.orig_argv:\n    import traced\n    traced.watch({{out!r}})\n"
"""A module that Python imports when it starts."""


def main() -> None:
    """Count, trace, print the record, and compare it with the ceilings."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkout", type=Path, default=ROOT, help="the clone to measure")
    parser.add_argument("--quick", action="store_true", help="count only")
    parser.add_argument("--check", action="store_true", help="fail above a ceiling of tools/size.toml")
    parser.add_argument("--json", action="store_true", help="print only the closing JSON object")
    options = parser.parse_args()
    end_in_order_when_told()
    checkout = options.checkout.resolve()
    figures: dict[str, Any] = counted(checkout)
    if not options.quick:
        figures |= traced(checkout)
    figures["python"] = f"{platform.python_implementation()} {platform.python_version()}"
    if not options.json:
        print(json.dumps(figures, indent=2))
    print(json.dumps(figures))
    if options.check and (above := above_ceiling(figures)):
        raise SystemExit("\n".join(["error: larger than tools/size.toml allows:", *above]))


def above_ceiling(figures: dict[str, Any]) -> list[str]:
    """What is above its ceiling, a line each."""
    ceilings = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    lines = [
        f"  {name}: {figures[name]:,} above {ceiling:,}"
        for name, ceiling in ceilings["whole"].items()
        if figures.get(name, 0) > ceiling
    ]
    for package, found in figures["packages"].items():
        allowed = ceilings["packages"].get(package, {"tokens": 0, "files": 0})
        lines += [
            f"  {package}: {found[name]:,} {name}, allowed are {allowed[name]:,}"
            for name in ("tokens", "files")
            if found[name] > allowed[name]
        ]
    return lines


# --- counted ------------------------------------------------------------------------------------------------


def counted(checkout: Path) -> dict[str, Any]:
    """What can be counted without running anything but the command line's own help."""
    root = checkout / "src" / "phasewise"
    texts = {path: path.read_text(encoding="utf-8") for path in sorted((checkout / "src").rglob("*.py"))}
    lines = {path: len(text.splitlines()) for path, text in texts.items()}
    classes = Counter(
        node.name
        for text in texts.values()
        for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef)
    )
    packages: dict[str, Counter[str]] = {}
    for path, text in texts.items():
        inner = path.relative_to(root).parts if path.is_relative_to(root) else path.parts[-2:]
        package = packages.setdefault(inner[0] if len(inner) > 1 else "phasewise", Counter())
        package["tokens"] += tokens_of(text)
        package["files"] += 1
    pages = (checkout / "docs").rglob("*.md")
    return {
        "src_lines": sum(lines.values()),
        "src_tokens": sum(package["tokens"] for package in packages.values()),
        "src_files": len(texts),
        "benchmark_lines": lines_under(checkout / "benchmarks"),
        "test_lines": lines_under(checkout / "tests"),
        "docs_words": sum(words_of(page.read_text(encoding="utf-8")) for page in pages),
        **commands(checkout),
        "duplicate_class_names": sum(count > 1 for count in classes.values()),
        "longest_file": max(lines.values()),
        "packages": {name: dict(package) for name, package in sorted(packages.items())},
    }


def tokens_of(text: str) -> int:
    """Tokens, in which comments, line ends and indentation do not count."""
    return sum(each.type not in NOT_COUNTED for each in tokenize.generate_tokens(io.StringIO(text).readline))


def words_of(text: str) -> int:
    """Words between spaces; what has no letter and no digit, such as the lines of a table, is none."""
    return sum(any(character.isalnum() for character in word) for word in text.split())


def lines_under(folder: Path) -> int:
    """Lines of its Python files."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in folder.rglob("*.py"))


def commands(checkout: Path) -> dict[str, int]:
    """How many commands the help lists, groups counted once, and how many options there are."""
    script = (
        "import json, typer; from phasewise.cli.app import app\n"
        "def inner(it): return [it.get_command(None, name) for name in it.list_commands(None)]\n"
        "def leaves(it): return sum(map(leaves, inner(it)), []) if hasattr(it, 'list_commands') else [it]\n"
        "root = typer.main.get_command(app)\n"
        "found = [p for it in leaves(root) for p in it.params if p.param_type_name == 'option']\n"
        "count = sum(p.name != 'help' for p in found)\n"
        "print(json.dumps({'commands': len(inner(root)), 'options': count}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment(checkout), capture_output=True, text=True, check=True
    )
    return dict(json.loads(done.stdout))


# --- traced -------------------------------------------------------------------------------------------------


def traced(checkout: Path) -> dict[str, int]:
    """How many files run for a chat and for a verdict."""
    with tempfile.TemporaryDirectory(prefix="phasewise-size-") as name, fake_engines(1, COST, SHAPE) as urls:
        folder = Path(name)
        chats = chat_paths(checkout, urls[0], folder)
        verdicts = verdict_paths(checkout, folder)
    return {"files_on_chat_path": int(median(chats)), "files_on_verdict_path": int(median(verdicts))}


def chat_paths(checkout: Path, engine: str, folder: Path) -> list[int]:
    """Files that ran between a streamed chat's head and its end, in a gateway that had served one before."""
    port, out, file = free_port(), folder / "chat.txt", folder / "gateway.yaml"
    worker = {"name": "w0", "url": engine, "model": "fake-model"}
    file.write_text(json.dumps({"version": 1, "gateway": {"port": port}, "workers": [worker]}))
    (folder / "sitecustomize.py").write_text(TRACE_CHILD.format(out=str(out)))
    env = environment(checkout)
    env["PYTHONPATH"] = os.pathsep.join((str(folder), env["PYTHONPATH"]))
    command = [sys.executable, "-m", "traced", str(out), *gateway_of(checkout)[1:], str(file)]
    found = []
    with subprocess.Popen(command, env=env, cwd=ROOT / "benchmarks") as process:
        try:
            wait_until(lambda: chat(port))
            supervisor = psutil.Process(process.pid)
            serving = [child for child in supervisor.children() if CHILD in child.cmdline()]
            traced = serving[0] if serving else supervisor
            for _ in range(RUNS):
                traced.send_signal(signal.SIGRTMIN)
                time.sleep(0.05)
                chat(port)
                traced.send_signal(signal.SIGRTMAX)
                wait_until(out.exists)
                found.append(len(ours(out, checkout)))
                out.unlink()
        finally:
            process.terminate()
            process.wait(30)
    return found


def verdict_paths(checkout: Path, folder: Path) -> list[int]:
    """Files that ran for `diagnose URL` of a gateway whose engine runs too few requests at once."""
    port, out, file = free_port(), folder / "verdict.txt", folder / "slow.yaml"
    url, env = f"http://127.0.0.1:{port}", environment(checkout) | {"PHASEWISE_ADMIN_KEY": ADMIN_KEY}
    python = [sys.executable, "-m"]
    load = ["bench", url, "--concurrency", str(CLIENTS), "--duration", "1800", "--output-tokens", "24"]
    with fake_engines(1, COST, SHAPE | {"max_num_seqs": TOO_FEW_SEQS}) as (engine,):
        gateway = {"port": port, "admin_key_sha256": hashlib.sha256(ADMIN_KEY.encode()).hexdigest()}
        worker = {"name": "w0", "url": engine, "steps_url": engine, "model": "fake-model"}
        file.write_text(json.dumps({"version": 1, "gateway": gateway, "workers": [worker]}))
        with running([sys.executable, *gateway_of(checkout), str(file)], environment=env) as process:
            wait_until_ready(url, process)
            with running([*python, "phasewise.cli", *load], stderr=subprocess.DEVNULL, environment=env):
                wait_until(lambda: has_served(engine))
                asked = ["phasewise.cli", "diagnose", url, "--window", str(WINDOW_S), "--json"]
                found = []
                for _ in range(RUNS):
                    subprocess.run(
                        [*python, "traced", str(out), *asked],
                        env=env,
                        cwd=ROOT / "benchmarks",
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL,
                        check=False,
                        timeout=300,
                    )
                    found.append(len(ours(out, checkout)))
                    out.unlink()
    return found


def ours(out: Path, checkout: Path) -> set[str]:
    """The package's own files among those noted."""
    root = str(checkout / "src")
    return {line for line in out.read_text().splitlines() if line.startswith(root)}


def has_served(engine: str) -> bool:
    """Whether an engine has finished requests."""
    with urllib.request.urlopen(f"{engine}/metrics", timeout=10) as reply:
        return re.search(rb"vllm:request_success_total\S* [1-9]", reply.read()) is not None


def chat(port: int) -> bool:
    """One streamed chat, read to its end."""
    body = {
        "model": "fake-model",
        "stream": True,
        "max_tokens": 4,
        "messages": [{"role": "user", "content": "hi"}],
    }
    headers = {"content-type": "application/json"}
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            return b"[DONE]" in reply.read()
    except OSError:
        return False


def wait_until(done: Any) -> None:  # noqa: ANN401 - anything that can be called
    """Look again and again, for two minutes at most."""
    until_s = time.monotonic() + 120
    while not done():
        if time.monotonic() > until_s:
            raise SystemExit("error: not ready within two minutes")
        time.sleep(0.1)


def environment(checkout: Path) -> dict[str, str]:
    """In which that checkout's package is the one that is imported."""
    paths = [checkout / "src", ROOT / "tools"]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "NO_COLOR": "1"}


if __name__ == "__main__":
    main()
