"""Pure packages stay pure: no clock, no randomness, no IO, no event loop; time and chance are handed in."""

import ast

import pytest

from tests.paths import ROOT

SRC = ROOT / "src" / "phasewise"
PURE = (
    "core",
    "scheduling",
    "costs",
    "semantic_match",
    "simulator",
    "diagnosis",
    "benchmark/statistics",
    "report/bench",
)
IMPURE_PARTS = ("diagnosis/gather",)
FORBIDDEN = {
    "asyncio", "datetime", "http", "io", "logging", "multiprocessing", "os", "pathlib", "random", "secrets",
    "shutil", "signal", "socket", "subprocess", "sys", "tempfile", "threading", "time", "urllib", "uuid",
    "httptools", "prometheus_client", "psutil", "uvicorn", "uvloop", "yaml",
}  # fmt: skip
FORBIDDEN_CALLS = {"open", "print", "input", "exec", "eval"}


def pure_files():
    for name in PURE:
        for path in sorted((SRC / name).rglob("*.py")):
            if not any(path.is_relative_to(SRC / part) for part in IMPURE_PARTS):
                yield path


def test_every_pure_package_is_there():
    assert all((SRC / name / "__init__.py").exists() for name in PURE)


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
