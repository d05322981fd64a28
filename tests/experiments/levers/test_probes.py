"""What an engine is asked: enough for the lever in question to act on."""

import asyncio

import pytest

from phasewise.experiments.levers.cases import CASES
from phasewise.experiments.levers.held_out_text import Probe, probe_of


async def most_at_once(probe):
    running = most = 0

    async def answer(prompt):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return prompt

    answers = await probe.ask(answer)
    return most, answers


@pytest.mark.parametrize("at_once", [1, 2, 3])
async def test_as_many_are_asked_at_the_same_time_as_the_probe_says(at_once):
    most, answers = await most_at_once(Probe(("a", "b", "c", "d"), at_once=at_once))
    assert most == at_once
    assert answers == ("a", "b", "c", "d")


async def test_every_prompt_begins_with_the_opening():
    assert (await most_at_once(Probe(("a", "b"), opening="once: ")))[1] == ("once: a", "once: b")


async def test_the_first_failure_ends_the_other_questions():
    ended = []

    async def answer(prompt):
        if prompt == "bad":
            raise ValueError(prompt)
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(prompt)

    with pytest.raises(ValueError, match="bad"):
        await Probe(("good", "bad"), at_once=2).ask(answer)
    assert ended == ["good"]


def test_every_lever_is_asked_what_it_acts_on():
    levers = {case.lever for case in CASES}
    shared = {lever for lever in levers if len(probe_of(lever, 4).opening.split()) > 512}
    together = {lever for lever in levers if probe_of(lever, 4).at_once == 4}
    copying = {lever for lever in levers if all("Repeat" in each for each in probe_of(lever, 4).prompts)}
    assert shared == {"prefix_cache", "max_num_batched_tokens"}
    assert together == {"continuous_batching", "max_num_seqs"}
    assert copying == {"speculation"}
    assert all(len(probe_of(lever, 4).prompts) == 4 for lever in levers)
