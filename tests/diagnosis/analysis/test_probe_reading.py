"""A probe's figures are comparisons between its own requests."""

from itertools import count

import pytest

from phasewise.diagnosis.analysis.probe_reading import probe_reading
from phasewise.report.diagnosis.words import probe_in_words
from tests.builders import EPOCH_S, make_timeline

STALLED = 2


def request(at_s, tokens, first_s, gaps=(0.05,) * 20):
    times = [first_s]
    for gap_s in gaps:
        times.append(times[-1] + gap_s)
    return make_timeline(
        tuple(times),
        request_id=f"probe-{next(NUMBERS)}",
        started_unix_s=EPOCH_S + at_s,
        prompt_tokens=tokens,
    )


NUMBERS = count()


def whole_probe(again_s=0.2):
    stalled = (*(0.08,) * 10, STALLED, *(0.08,) * 10)
    return [
        *(request(3 * index, 64, 0.1) for index in range(3)),
        request(10, 1564, 1.6),
        request(15, 1564, again_s),
        *(request(20, 64, 0.1, stalled) for _ in range(4)),
        request(21, 1564, 1.9),
    ]


def test_every_figure_compares_requests_of_the_probe():
    found = probe_reading(whole_probe())
    assert (found.short.prompt_tokens, found.short.ttft_s) == (64, pytest.approx(0.1))
    assert found.per_1000_s == pytest.approx(1.0)
    assert found.reuses_prefixes
    assert (found.alone_tpot_s, found.together_tpot_s) == (pytest.approx(0.05), pytest.approx(0.08))
    assert (found.streams, found.stall_s, found.joined_tokens) == (4, pytest.approx(STALLED), 1564)


def test_a_stall_is_whole_behind_a_gateway_with_two_engines():
    """Only half of the streams run on the engine that reads the long prompt; the median would halve it."""
    *alone, _, _, _, _, joined = whole_probe()
    stalled = (*(0.08,) * 10, STALLED, *(0.08,) * 10)
    streams = [request(20, 64, 0.1, gaps) for gaps in (stalled, stalled, (0.08,) * 30, (0.08,) * 30)]
    found = probe_reading([*alone, *streams, joined])
    assert found.stall_s == pytest.approx(STALLED)


def test_they_are_four_lines_that_name_sizes_and_times():
    first, cache, batch, stall = probe_in_words(probe_reading(whole_probe()))
    assert first == "TTFT 100 ms with 64 prompt tokens, 1.60 s with 1564: 1.00 s per 1,000 tokens"
    assert cache == "the same prompt again 200 ms: the prefix cache works"
    assert batch == "a token takes 50.0 ms alone, 80.0 ms with 4 streams"
    assert stall == "a prompt of 1564 tokens stalls running streams for 2.00 s, 1.28 ms per prompt token"


def test_a_prompt_that_takes_as_long_again_was_not_reused():
    found = probe_reading(whole_probe(again_s=1.5))
    assert not found.reuses_prefixes
    assert "does not help" in list(probe_in_words(found))[1]


@pytest.mark.parametrize("finished", range(11))
def test_a_part_of_a_probe_says_what_it_has(finished):
    found = probe_reading(whole_probe()[:finished])
    lines = [] if found is None else list(probe_in_words(found))
    assert all("None" not in line for line in lines)
    assert (found is None) == (finished == 0) or finished < 4
