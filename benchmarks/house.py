"""How large the code is, and how much of it a newcomer has to read.

    python benchmarks/house.py [--checkout DIR] [--quick] [--json]

The last line is one JSON object: packages (folders with an __init__.py, at any depth), files and src_lines
of src/, docs_words of docs/, commands (those that `phasewise --help` lists; a group counts once),
subcommands (those in groups), median_file_lines (of files that are not an __init__),
single_importer_files (imported by one file, of their own package), duplicate_class_names (names that more
than one class has), forbidden_words (those that tools/words.toml gave up, in src, docs and examples),
files_on_chat_path and files_on_verdict_path (files of ours in which a
function ran: for one streamed chat through a gateway, and for `diagnose URL` of a gateway whose engine has a
step record and a batch cap that is too low, so that a cause is found, fixes are advised and replayed; code
that runs at import does not count, background polling that falls into the same moment does),
startup_ratio (processor time of `phasewise --version` by that of `python -c 'import typer, rich'`, the
least of several runs of each, in turn). --checkout measures another clone; --quick leaves the traced paths
and the start out.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib.util
import json
import os
import platform
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

from ending import end_in_order_when_told
from overhead.arms import gateway_of
from stress.processes import fake_engines, free_port, running, wait_until_ready

REPOSITORY = Path(__file__).resolve().parents[1]
STARTS = 7
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
ADMIN_KEY = "a-key-of-this-benchmark"
WINDOW_S = 12.0
MUST_RUN = ("rules/find.py", "advice/choose.py", "predict/replay.py")
"""Without these the scene did not show what it is for."""


def main() -> None:
    """Count, trace, print the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkout", type=Path, default=REPOSITORY, help="the clone to measure")
    parser.add_argument("--quick", action="store_true", help="count only")
    parser.add_argument("--json", action="store_true", help="print only the closing JSON object")
    options = parser.parse_args()
    end_in_order_when_told()
    checkout = options.checkout.resolve()
    figures: dict[str, Any] = counted(checkout)
    if not options.quick:
        figures |= traced(checkout) | {"startup_ratio": startup_ratio(checkout)}
    figures["python"] = f"{platform.python_implementation()} {platform.python_version()}"
    if not options.json:
        print(json.dumps(figures, indent=2))
    print(json.dumps(figures))


# --- counted ------------------------------------------------------------------------------------------------


def counted(checkout: Path) -> dict[str, Any]:
    """What can be counted without running anything but the command line's own help."""
    files = sorted((checkout / "src").rglob("*.py"))
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in files}
    classes = Counter(
        node.name for tree in trees.values() for node in tree.body if isinstance(node, ast.ClassDef)
    )
    pages = (checkout / "docs").rglob("*.md")
    return {
        "packages": sum(path.name == "__init__.py" for path in files),
        "files": len(files),
        "src_lines": sum(lines.values()),
        "docs_words": sum(len(page.read_text(encoding="utf-8").split()) for page in pages),
        **commands(checkout),
        "median_file_lines": median(count for path, count in lines.items() if path.name != "__init__.py"),
        "single_importer_files": single_importers(checkout / "src", trees),
        "duplicate_class_names": sum(count > 1 for count in classes.values()),
        "forbidden_words": forbidden_words(checkout),
    }


def forbidden_words(checkout: Path) -> int:
    """How many words there are that this clone's table gave up."""
    spec = importlib.util.spec_from_file_location("words", REPOSITORY / "tools" / "words.py")
    if spec is None or spec.loader is None:
        raise SystemExit("error: tools/words.py cannot be loaded")
    sys.modules["words"] = words = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(words)
    return sum(1 for _ in words.hits_under(checkout, *words.TABLE["where"]))


def single_importers(root: Path, trees: dict[Path, ast.Module]) -> int:
    """How many files one other file of their own folder imports, and nobody else."""
    modules = {module_name(root, path): path for path in trees}
    importers: dict[str, set[str]] = {name: set() for name in modules}
    for name, path in modules.items():
        for node in ast.walk(trees[path]):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    target = inner if inner in modules else node.module
                    if target in modules and target != name:
                        importers[target].add(name)
    return sum(
        len(by) == 1 and next(iter(by)).rpartition(".")[0] == name.rpartition(".")[0]
        for name, by in importers.items()
        if modules[name].name != "__init__.py"
    )


def module_name(root: Path, path: Path) -> str:
    """As it is imported."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def commands(checkout: Path) -> dict[str, int]:
    """How many commands the help lists, groups counted once, and how many are in groups."""
    script = (
        "import json, typer; from phasewise.cli.app import app\n"
        "root = typer.main.get_command(app)\n"
        "top = [root.get_command(None, name) for name in root.list_commands(None)]\n"
        "inner = [len(it.list_commands(None)) for it in top if hasattr(it, 'commands')]\n"
        "print(json.dumps({'commands': len(top), 'subcommands': sum(inner)}))"
    )
    return dict(json.loads(run_python(checkout, "-c", script)))


# --- traced -------------------------------------------------------------------------------------------------


def traced(checkout: Path) -> dict[str, int]:
    """How many files run for a chat and for a verdict."""
    with tempfile.TemporaryDirectory(prefix="phasewise-house-") as name, fake_engines(1, COST, SHAPE) as urls:
        folder = Path(name)
        return {
            "files_on_chat_path": len(chat_path(checkout, urls[0], folder)),
            "files_on_verdict_path": len(verdict_path(checkout, folder)),
        }


def chat_path(checkout: Path, engine: str, folder: Path) -> set[str]:
    """Files that ran between a streamed chat's head and its end, in a gateway that had served one before."""
    port, out, file = free_port(), folder / "chat.txt", folder / "gateway.yaml"
    worker = {"name": "w0", "url": engine, "model": "fake-model"}
    file.write_text(json.dumps({"version": 1, "gateway": {"port": port}, "workers": [worker]}))
    command = [sys.executable, "-m", "house_figures.traced", str(out), *gateway_of(checkout)[1:], str(file)]
    with subprocess.Popen(command, env=environment(checkout), cwd=Path(__file__).parent) as process:
        try:
            wait_until(lambda: chat(port))
            process.send_signal(signal.SIGUSR1)
            time.sleep(0.05)
            chat(port)
            process.send_signal(signal.SIGUSR2)
            wait_until(out.exists)
        finally:
            process.terminate()
            process.wait(30)
    return ours(out, checkout)


def verdict_path(checkout: Path, folder: Path) -> set[str]:
    """Files that ran for `diagnose URL` of a gateway whose engine runs too few requests at once."""
    port, out, file = free_port(), folder / "verdict.txt", folder / "slow.yaml"
    url, env = f"http://127.0.0.1:{port}", environment(checkout) | {"PHASEWISE_ADMIN_KEY": ADMIN_KEY}
    python = [sys.executable, "-m"]
    load = ["bench", url, "--concurrency", str(CLIENTS), "--duration", "600", "--output-tokens", "24"]
    with fake_engines(1, COST, SHAPE | {"max_num_seqs": TOO_FEW_SEQS}) as (engine,):
        gateway = {"port": port, "admin_key_sha256": hashlib.sha256(ADMIN_KEY.encode()).hexdigest()}
        worker = {"name": "w0", "url": engine, "steps_url": engine, "model": "fake-model"}
        file.write_text(json.dumps({"version": 1, "gateway": gateway, "workers": [worker]}))
        with running([sys.executable, *gateway_of(checkout), str(file)], environment=env) as process:
            wait_until_ready(url, process)
            with running([*python, "phasewise.cli", *load], stderr=subprocess.DEVNULL, environment=env):
                wait_until(lambda: has_served(engine))
                asked = ["phasewise.cli", "diagnose", url, "--window", str(WINDOW_S), "--json"]
                subprocess.run(
                    [*python, "house_figures.traced", str(out), *asked],
                    env=env,
                    cwd=Path(__file__).parent,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    check=False,
                    timeout=300,
                )
    seen = ours(out, checkout)
    if missing := [name for name in MUST_RUN if not any(path.endswith(name) for path in seen)]:
        raise SystemExit(
            f"error: {', '.join(missing)} did not run: the verdict had no cause, advice or replay"
        )
    return seen


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
    """Look again and again, for a minute at most."""
    until_s = time.monotonic() + 60
    while not done():
        if time.monotonic() > until_s:
            raise SystemExit("error: not ready within a minute")
        time.sleep(0.1)


# --- started ------------------------------------------------------------------------------------------------


def startup_ratio(checkout: Path) -> float:
    """Processor time of the command line's start by that of its libraries' import."""
    ours_s, theirs_s = [], []
    for _ in range(STARTS):
        theirs_s.append(cpu_s(checkout, "-c", "import typer, rich"))
        ours_s.append(cpu_s(checkout, "-m", "phasewise.cli", "--version"))
    return round(min(ours_s) / min(theirs_s), 2)


def cpu_s(checkout: Path, *arguments: str) -> float:
    """What one run took of the processor."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run_python(checkout, *arguments)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def run_python(checkout: Path, *arguments: str) -> str:
    """What Python prints, with this checkout's sources."""
    done = subprocess.run(
        [sys.executable, *arguments],
        env=environment(checkout),
        capture_output=True,
        text=True,
        check=True,
    )
    return re.sub(r"\x1b\[[0-9;]*m", "", done.stdout).strip()


def environment(checkout: Path) -> dict[str, str]:
    """In which that checkout's package is the one that is imported."""
    return {**os.environ, "PYTHONPATH": str(checkout / "src"), "NO_COLOR": "1"}


if __name__ == "__main__":
    main()
