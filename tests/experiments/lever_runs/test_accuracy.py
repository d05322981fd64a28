"""Readings of accuracy: the same engine twice is equal, and what an engine rejects is said."""

import numpy as np
import orjson
import pytest

from phasewise.core.errors import ConfigError, MeasurementError
from phasewise.experiments.lever_runs.accuracy import read_accuracy
from phasewise.experiments.levers.accuracy_price import price
from phasewise.experiments.levers.held_out_text import PASSAGES, PROMPTS, Probe
from tests.loadgen.scripted_server import scripted_server

MODELS = {"data": [{"id": "m", "max_model_len": 512}]}
TOP_TWO = [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -1.25}]
CHAT = {
    "choices": [
        {"token_ids": [7, 8], "logprobs": {"content": [{"top_logprobs": TOP_TWO}, {"top_logprobs": []}]}}
    ]
}
TEXT = {"choices": [{"prompt_logprobs": [None, {"5": {"logprob": -1.5}}, {"6": {"logprob": -0.5}}]}]}


def engine(chat=CHAT, text=TEXT):
    """A server whose replies are bodies, or functions that make a status and a body of what was asked."""
    replies = {"/v1/models": MODELS, "/v1/chat/completions": chat, "/v1/completions": text}

    def answer(asked):
        reply = replies[asked.path]
        status, body = reply(asked.body) if callable(reply) else (200, reply)
        return status, [orjson.dumps(body)]

    return scripted_server(answer)


def rejecting(words, status=400):
    return lambda body: (status, {"error": {"message": words}})


async def test_a_reading_holds_tokens_leads_and_log_probabilities():
    async with engine() as url:
        reading = await read_accuracy(url, Probe(("a", "b")), passages=("c",))
    assert [answer.token_ids for answer in reading.answers] == [(7, 8), (7, 8)]
    assert reading.answers[0].leads == (0.75, None)
    assert reading.passages == ((-1.5, -0.5),)
    assert reading.perplexity == pytest.approx(np.e)


async def test_answers_are_asked_for_greedily_and_with_their_tokens():
    bodies = []

    def chat(body):
        bodies.append(body)
        return 200, CHAT

    async with engine(chat=chat) as url:
        await read_accuracy(url, Probe(("a",)), passages=(), answer_tokens=5)
    assert (bodies[0]["temperature"], bodies[0]["max_tokens"], bodies[0]["return_token_ids"]) == (0, 5, True)


async def test_engine_without_candidates_still_gives_its_answers():
    def chat(body):
        if "logprobs" in body:
            return rejecting("logprobs are off")(body)
        return 200, {"choices": [{"token_ids": [7], "logprobs": None}]}

    async with engine(chat=chat) as url:
        reading = await read_accuracy(url, Probe(("a",)), passages=("c",))
    assert reading.answers[0].token_ids == (7,)
    assert reading.answers[0].leads is None


async def test_what_the_engine_rejects_is_none_with_its_words():
    async with engine(chat=rejecting("no chat template"), text=rejecting("prompt_logprobs are off")) as url:
        reading = await read_accuracy(url, Probe(("a",)), passages=("c",))
    assert (reading.answers, reading.passages, reading.perplexity) == (None, None, None)
    assert reading.answers_rejected == "the engine rejects answers (HTTP 400): no chat template"
    assert "prompt_logprobs are off" in reading.passages_rejected


async def test_replies_without_what_was_asked_for_count_as_rejected():
    async with engine(chat={"choices": [{}]}, text={"choices": [{"prompt_logprobs": None}]}) as url:
        reading = await read_accuracy(url, Probe(("a",)), passages=("c",))
    assert "without token ids" in reading.answers_rejected
    assert "no log-probabilities" in reading.passages_rejected


async def test_an_engine_that_breaks_down_is_an_error_not_a_rejection():
    async with engine(chat=rejecting("out of memory", status=500)) as url:
        with pytest.raises(MeasurementError, match="out of memory"):
            await read_accuracy(url, Probe(("a",)), passages=("c",))


async def test_a_model_that_is_not_served_is_named():
    async with engine() as url:
        with pytest.raises(ConfigError, match="does not serve 'other'"):
            await read_accuracy(url, Probe(("a",)), model="other")


def test_there_is_enough_to_ask():
    assert len(set(PROMPTS)) == 12
    assert 600 <= sum(len(passage.split()) for passage in PASSAGES) <= 800


@pytest.mark.real
async def test_the_same_real_engine_twice_comes_out_as_equal(real_engine):
    """Fewer and shorter answers than by default: behaviour shows in these, too."""
    asked = {"probe": Probe(PROMPTS[:2]), "passages": PASSAGES[1:2], "answer_tokens": 8}
    first = await read_accuracy(real_engine.base_url, **asked)
    second = await read_accuracy(real_engine.base_url, **asked)
    assert (first.answers_rejected, first.passages_rejected) == (None, None)
    assert [len(answer.leads) for answer in first.answers] == [8, 8]
    assert all(lead >= 0 for answer in first.answers for lead in answer.leads)
    assert 10 < first.perplexity < 100
    result = price(first, second, np.random.default_rng(1))
    assert (result.answers.equal, result.perplexity.ratio) == (2, 1.0), result.sentence
