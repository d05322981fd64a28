from __future__ import annotations

from phasewise.errors import MeasurementError
from phasewise.levers.accuracy_reading import AccuracyReading, Answer
from phasewise.levers.agenda import QUICK
from phasewise.levers.outputs import OutputReader

TEXT = tuple(tuple(-1.0 - 0.01 * (place % 7) for place in range(200)) for _ in range(4))


def reading(*answers, passages=TEXT):
    return AccuracyReading("m", tuple(Answer(tokens) for tokens in answers), passages)


async def test_an_engine_is_read_once_however_many_levers_it_is_compared_by():
    asked = []

    async def read(url, effort):
        asked.append(url)
        return reading((1, 2, 3), (4, 5))

    reader = OutputReader(seed=1, read=read)
    for on_url in ("http://b", "http://c"):
        outputs = await reader.compare("http://a", on_url, QUICK)
        assert (outputs.equal, outputs.answers) == (2, 2)
    assert asked == ["http://a", "http://b", "http://c"]


async def test_changed_answers_and_a_harder_text_are_a_price():
    harder = tuple(tuple(chance - 0.05 for chance in passage) for passage in TEXT)
    readings = {"a": reading((1, 2), (3, 4)), "b": reading((1, 2), (3, 5), passages=harder)}

    async def read(url, effort):
        return readings[url]

    outputs = await OutputReader(seed=1, read=read).compare("a", "b", QUICK)
    assert (outputs.equal, outputs.answers) == (1, 2)
    assert 0.04 < outputs.low <= outputs.perplexity_change <= outputs.high < 0.06
    assert "1 of 2 answers equal" in outputs.sentence


async def test_an_engine_that_fails_is_the_reason_for_no_price():
    async def read(url, effort):
        raise MeasurementError("the engine failed when asked for answers")

    outputs = await OutputReader(seed=1, read=read).compare("a", "b", QUICK)
    assert outputs.answers == 0
    assert "the engine failed" in outputs.reason
