from __future__ import annotations

from dataclasses import replace

from phasewise.core.errors import MeasurementError
from phasewise.experiments.lever_runs.outputs import OutputReader, streamed_answers
from phasewise.experiments.levers.accuracy_price import AccuracyReading, GreedyAnswer
from phasewise.experiments.levers.agenda import QUICK
from phasewise.experiments.levers.held_out_text import Probe
from tests.experiments.levers.builders import ON, make_case

TEXT = tuple(tuple(-1.0 - 0.01 * (place % 7) for place in range(200)) for _ in range(4))
CASE = make_case()


def reading(*answers, passages=TEXT):
    return AccuracyReading("m", tuple(GreedyAnswer(tokens) for tokens in answers), passages)


async def test_an_engine_is_asked_once_what_several_levers_are_compared_by():
    asked = []

    async def read(url, probe, tokens, with_text):
        asked.append((url, probe.at_once, with_text))
        return reading((1, 2, 3), (4, 5), passages=TEXT if with_text else ())

    reader = OutputReader(seed=1, read=read)
    for name, on_url in (("lever", "b"), ("other", "c"), ("max_num_seqs", "d")):
        outputs = await reader.compare(make_case(name), "a", on_url, QUICK)
        assert (outputs.equal, outputs.answers) == (2, 2)
        assert outputs.perplexity_change == 0
    assert asked == [("a", 1, True), ("b", 1, True), ("c", 1, True), ("a", 4, False), ("d", 4, True)]


async def test_another_engine_at_an_address_is_asked_again():
    asked = []

    async def read(url, probe, tokens, with_text):
        asked.append(url)
        return reading((1, 2, 3))

    reader = OutputReader(seed=1, read=read)
    for on in (ON, replace(ON, scheme="w8a8")):
        await reader.compare(make_case(on=on), "a", "b", QUICK)
    assert asked == ["a", "b", "b"]


async def test_changed_answers_and_a_harder_text_are_a_price():
    harder = tuple(tuple(chance - 0.05 for chance in passage) for passage in TEXT)
    readings = {"a": reading((1, 2), (3, 4)), "b": reading((1, 2), (3, 5), passages=harder)}

    async def read(url, probe, tokens, with_text):
        return readings[url]

    outputs = await OutputReader(seed=1, read=read).compare(CASE, "a", "b", QUICK)
    assert (outputs.equal, outputs.answers) == (1, 2)
    assert 0.04 < outputs.low <= outputs.perplexity_change <= outputs.high < 0.06
    assert "1 of 2 answers equal" in outputs.sentence


async def test_an_engine_that_fails_is_the_reason_for_no_price():
    async def read(url, probe, tokens, with_text):
        raise MeasurementError("the engine failed when asked for answers")

    outputs = await OutputReader(seed=1, read=read).compare(CASE, "a", "b", QUICK)
    assert outputs.answers == 0
    assert "the engine failed" in outputs.reason


async def test_a_server_that_only_streams_is_compared_by_its_text():
    async def read(url, probe, tokens, with_text):
        return AccuracyReading("m", None, None, answers_rejected="answers are streamed")

    texts = {"a": ("yes", "no"), "b": ("yes", "maybe")}

    async def stream(url, probe, tokens):
        return texts[url]

    outputs = await OutputReader(seed=1, read=read, stream=stream).compare(CASE, "a", "b", QUICK)
    assert (outputs.equal, outputs.answers) == (1, 2)
    assert outputs.sentence == "1 of 2 streamed answers equal"
    assert outputs.has_price(quality=False)
    assert not outputs.has_price(quality=True), "how well it predicts a text is unknown"


async def test_streamed_answers_keep_the_price_that_the_text_shows():
    async def read(url, probe, tokens, with_text):
        return AccuracyReading("m", None, TEXT, answers_rejected="no token ids")

    async def stream(url, probe, tokens):
        return ("yes",)

    outputs = await OutputReader(seed=1, read=read, stream=stream).compare(CASE, "a", "b", QUICK)
    assert outputs.has_price(quality=True)
    assert outputs.sentence.startswith("1 of 1 streamed answers equal; perplexity ")


async def test_streamed_answers_are_the_engines_own(fake_engine):
    probe = Probe(("What is a lever?", "What is a fulcrum?"), at_once=2)
    first = await streamed_answers(fake_engine.base_url, probe, 5)
    assert first == await streamed_answers(fake_engine.base_url, probe, 5)
    assert all(len(answer.split()) == 5 for answer in first)
