"""What processes of a gateway learn from each other: prefixes that engines hold."""

from __future__ import annotations

import asyncio
import os

import pytest

from phasewise.core.worker import WorkerRef
from phasewise.gateway.processes.board import Board, create_board
from phasewise.gateway.processes.neighbours import HASHES_AT_ONCE, PREFIXES_EVERY_S, BoardNeighbours
from tests.gateway.harness import eventually

LONGEST_PROMPT = 512
"""The most hashes of one prompt."""


@pytest.fixture
async def process(tmp_path):
    """Starts the neighbours of a process, by its column; they end with the test."""
    fd, started = create_board(), []

    def start(column):
        made = BoardNeighbours(Board(fd, column), tmp_path)
        made.start()
        started.append(made)
        return made

    yield start
    for each in started:
        each.stop()
    os.close(fd)


def prompt(number, blocks):
    first = 2**63 + number * blocks
    return WorkerRef("w0", "1"), tuple(range(first, first + blocks)), 128 * blocks, 0, 0


@pytest.mark.parametrize(
    ("prompts", "blocks"), [(3, 4), (3 * HASHES_AT_ONCE // LONGEST_PROMPT, LONGEST_PROMPT)]
)
async def test_prompts_of_any_length_reach_the_other_process_whole_and_in_order(process, prompts, blocks):
    here, there, learned = process(0), process(1), []
    there.on_served = lambda *heard: learned.append(heard)
    sent = [prompt(number, blocks) for number in range(prompts)]
    for each in sent:
        here.served(*each)
    await eventually(lambda: len(learned) == prompts)
    assert learned == sent


async def test_what_nobody_took_follows_with_the_next(process, tmp_path):
    here, learned = process(0), []
    process(1)
    (tmp_path / "turn-1").unlink()
    here.served(*prompt(0, 4))
    await asyncio.sleep(3 * PREFIXES_EVERY_S)
    process(1).on_served = lambda *heard: learned.append(heard)
    here.served(*prompt(1, 4))
    await eventually(lambda: len(learned) == 2)
    assert learned == [prompt(0, 4), prompt(1, 4)]


async def test_a_process_that_is_alone_sends_nothing(process):
    here, learned = process(0), []
    here.served(*prompt(0, 4))
    process(1).on_served = lambda *heard: learned.append(heard)
    here.served(*prompt(1, 4))
    await eventually(lambda: learned)
    assert learned == [prompt(1, 4)]
