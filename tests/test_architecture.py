"""Pure packages stay pure: no clock, no randomness, no IO, no event loop; time and chance are handed in."""

import ast
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src" / "phasewise"
PURE = (
    "model", "state", "costs", "routing", "caching", "diagnosis", "predict", "request_flow",
    "bench/bootstrap.py", "bench/change_point.py", "bench/comparison.py", "bench/estimates.py",
    "bench/max_rate.py", "bench/stationarity.py", "bench/statistics.py", "bench/student.py",
    "bench/validity.py", "bench/window.py", "calibrate/client_view.py", "calibrate/played.py",
    "calibrate/result.py", "calibrate/scenes.py", "check/facts.py", "check/judgement.py",
    "config/connector.py", "config/engine_flags.py", "config/hand_over.py", "fleet/kv_connector.py",
    "fleet/role_presets.py",
    "compare/metrics.py", "compare/verdict.py", "gateway/server_timing.py",
    "gateway/hand_over_bodies.py",
    "gateway/resumability.py", "gateway/resumption.py", "gateway/continued_stream.py",
    "levers/agenda.py", "levers/cases.py", "levers/catalogue.py", "levers/findings.py", "levers/modelled.py",
    "levers/notes.py", "levers/picture.py", "levers/workloads.py",
    "levers/accuracy_price.py", "levers/accuracy_reading.py", "levers/held_out_text.py",
)  # fmt: skip
FORBIDDEN = {
    "asyncio", "datetime", "http", "io", "logging", "multiprocessing", "os", "pathlib", "random", "secrets",
    "shutil", "signal", "socket", "subprocess", "sys", "tempfile", "threading", "time", "urllib", "uuid",
    "httptools", "prometheus_client", "uvicorn", "uvloop", "yaml",
}  # fmt: skip
FORBIDDEN_CALLS = {"open", "print", "input", "exec", "eval"}


def pure_files():
    for name in PURE:
        path = SRC / name
        yield from [path] if path.is_file() else sorted(path.rglob("*.py"))


def impurities(source):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in FORBIDDEN_CALLS:
                yield f"calls {node.func.id}()"
            continue
        else:
            continue
        yield from (f"imports {name}" for name in names if name.partition(".")[0] in FORBIDDEN)


@pytest.mark.parametrize("path", list(pure_files()), ids=lambda path: str(path.relative_to(SRC)))
def test_pure_code_has_no_clock_no_chance_and_no_io(path):
    assert list(impurities(path.read_text())) == []


def test_the_check_sees_what_it_forbids():
    source = "import time\nfrom os import path\ndef f():\n    import random\n    open('x')\n"
    assert len(list(impurities(source))) == 4
