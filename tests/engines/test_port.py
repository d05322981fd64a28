"""Every adapter has all of the port, and nobody else knows an engine's names."""

import re

import pytest

from phasewise.engines import known
from phasewise.engines.port import Engine
from tests.paths import ROOT

SRC = ROOT / "src" / "phasewise"
KNOW_THEM = (
    "engines/vllm.py",
    "engines/llama_cpp.py",
    "fleet/",  # installs, starts and checks it
    "fake_engine/",  # speaks its dialect
    "experiments/validation.py",  # names options of our own, some by the same names
    "cli/",
    "api/",
)


def others():
    for file in sorted(SRC.rglob("*.py")):
        place = file.relative_to(SRC).as_posix()
        if not place.startswith(KNOW_THEM):
            yield place, file.read_text()


@pytest.mark.parametrize("engine", known.ENGINES, ids=lambda it: it.TITLE)
def test_an_adapter_has_all_of_the_port(engine):
    for name in {*Engine.__annotations__, *(it for it in vars(Engine) if not it.startswith("_"))}:
        assert hasattr(engine, name), name


def test_nobody_else_knows_a_metric():
    named = [
        (place, found)
        for place, text in others()
        for found in re.findall(r"(?:vllm|llamacpp):[a-z]\w+", text)
    ]
    assert named == []


def test_nobody_else_knows_a_flag_of_vllm():
    flags = {flag.replace("[no-]", "") for flag in known.USUAL.FLAGS.values()}
    wanted = re.compile("|".join(sorted(map(re.escape, flags), reverse=True)))
    assert [(place, found) for place, text in others() for found in wanted.findall(text)] == []


def test_another_servers_metrics_are_no_engines():
    assert known.engine_of(b"# TYPE go_goroutines gauge\ngo_goroutines 8\n") is None
