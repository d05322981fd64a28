"""No pattern takes more than linear time, whatever a client, an engine or a file has it read.

Every compiled pattern of the package is found by itself, so that a new one is tried too. Each reads texts
that invite it to read again what it has read: something it looks for, a long run, an end that does not fit.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import time

import pytest

import phasewise
from phasewise.gateway.api.schemas import check_schemas
from phasewise.gateway.upstream.resumption import _last_word
from phasewise.semantic_match.reading import read

SIZES = (16, 64, 256, 1024, 4096)
SLOW_S = 0.001
"""What takes less is not looked at: linear patterns read the largest size in a small part of it."""
ENOUGH_S = 0.01
MOST_GROWTH = 10.0
"""For four times the text. Linear time grows by 4, quadratic by 16."""
RUNS = (" ", "a", "1", "-", ".", ",", "/", '"', "\\", "\n", "`", "{", "[", "a ", "a.", "1,", "\\n", "_a")
ENDS = ("", "a b", '!"\n')

ANCHORED = {
    "phasewise.cli.measuring._KEY_OPTION": "fullmatch",
    "phasewise.clients.http_client._WITHOUT_SCHEME": "fullmatch",
    "phasewise.fake_engine.server._SECONDS": "fullmatch",
    "phasewise.fleet.engines.known_models._HUB_ID": "fullmatch",
    "phasewise.core.slo._DURATION": "fullmatch",
    "phasewise.gateway.records.timeline_store._ENGINES_FORM": "fullmatch",
    "phasewise.gateway.records.timeline_store._ITS_BEGINNING": "fullmatch",
}
"""Patterns that are only ever held against a text as a whole."""


BOUNDED = {
    "phasewise.experiments.validation_claims._ADDRESSES",
}
"""Patterns that look at most a few hundred characters ahead from each place, and only ever read short texts:
their time grows faster than the text until that far."""


def patterns():
    found = {}
    for module in pkgutil.walk_packages(phasewise.__path__, "phasewise."):
        if not module.name.endswith("__main__"):
            for name, value in vars(importlib.import_module(module.name)).items():
                if isinstance(value, re.Pattern) and f"{module.name}.{name}" not in BOUNDED:
                    found.setdefault(value, f"{module.name}.{name}")
    return found


PATTERNS = patterns()


def literals(pattern):
    """What stands in a pattern to the letter, roughly."""
    source = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    plain = source.replace("\\s*", "").replace("\\s+", " ").replace("\\", "")
    return set(re.findall(r"[\w\"':/@#{}\[\]`~.,$-]{1,40}", plain)) | set(re.findall(r"\w+", plain))


def growth(use, make):
    """How much longer `use` takes for four times the text, at the largest size that is still quickly read."""
    for size in SIZES:
        if (took_s := fastest_s(use, make(size))) > ENOUGH_S:
            break
    if took_s < SLOW_S or size == SIZES[0]:
        return 1.0
    # Read again, several times: the machine may have been taken away for a moment, or be crowded for longer.
    grown = MOST_GROWTH
    for _ in range(3):
        grown = min(grown, fastest_s(use, make(size), 3) / max(fastest_s(use, make(size // 4), 3), 1e-6))
        if grown < MOST_GROWTH:
            break
    return grown


def fastest_s(use, text, times=1):
    best_s = float("inf")
    for _ in range(times):
        begun_s = time.thread_time()
        use(text)
        best_s = min(best_s, time.thread_time() - begun_s)
    return best_s


@pytest.mark.parametrize("pattern", PATTERNS, ids=PATTERNS.values())
def test_a_pattern_takes_linear_time(pattern):
    use = getattr(pattern, ANCHORED.get(PATTERNS[pattern], "search"))
    for start in ("", *sorted(literals(pattern))):
        for run in (*RUNS, *([start] if start else [])):
            for end in ENDS:
                grown = growth(use, text_maker(pattern, start, run, end))
                assert grown < MOST_GROWTH, f"{start!r}, then {run!r} again and again, then {end!r}"


def text_maker(pattern, start, run, end):
    def make(size):
        text = start + run * (size // len(run)) + end
        return text.encode() if isinstance(pattern.pattern, bytes) else text

    return make


@pytest.mark.parametrize("source", [r"\{\s*(\d*)\s*,?\s*(\d*)\s*\}", r"\s*\S*\Z", r"[a-z.]+://"], ids=str)
def test_this_test_finds_patterns_that_take_longer(source):
    pattern = re.compile(source)
    assert any(
        growth(pattern.search, text_maker(pattern, start, run, end)) >= MOST_GROWTH
        for start in ("{", "")
        for run in (" ", "a.")
        for end in ENDS
    )


FUNCTIONS = {
    "repeat counts of a client's pattern": (
        lambda text: check_schemas({"guided_regex": text}, b"regex", ("guided_regex",)),
        [("{", " ", ""), ("{", "0", ","), ("", "{ ", ""), ("", "{1,", "")],
    ),
    "an engine's last word": (_last_word, [("", " ", "a b"), ("", "a ", ""), ("", "a", ""), ("", "\n", "a")]),
    "a question that guards read": (
        read.__wrapped__,  # without its cache
        [
            ("", "`", ""),
            ("```", " ", "``"),
            ("", '"', "a"),
            ("", "a.", ""),
            ("", "n't ", "1"),
            ("", "A?", "="),
        ],
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_reading_what_others_wrote_takes_linear_time(name):
    use, texts = FUNCTIONS[name]
    for start, run, end in texts:
        grown = growth(use, lambda size, parts=(start, run, end): parts[0] + parts[1] * size + parts[2])
        assert grown < MOST_GROWTH, (start, run, end)
