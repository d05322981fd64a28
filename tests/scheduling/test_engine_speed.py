"""Engine speeds are learned from request times, and lent to workers without readings."""

from random import Random

import pytest

from phasewise.core.worker import Role, WorkerRef
from phasewise.costs.fit.step import StepCost, prefilling
from phasewise.scheduling.engine_speed import EngineSpeeds
from phasewise.simulator.requests import PRESETS
from tests.builders import make_worker

CPU: StepCost = PRESETS["cpu-demo"]
PREFILL = make_worker("p0", role=Role.PREFILL, pool="prefill")
DECODE = [make_worker(f"d{index}", role=Role.DECODE, pool="decode") for index in range(3)]
OTHER = make_worker("x0", model="another")


def make_book():
    return EngineSpeeds([PREFILL, *DECODE, OTHER])


def read_s(tokens):
    return CPU(prefilling(tokens))


def learn_reads(book, worker, sizes=(30, 300, 1_500, 60, 800), factor=1.0):
    for tokens in sizes:
        book.learn_read(worker.ref, tokens, 0, read_s(tokens) * factor)


def learn_steps(book, worker, factor=1.0):
    for streams in (1, 4, 2, 8):
        book.learn_step(worker.ref, streams, (0.057 + 0.0011 * streams) * factor)


def test_nothing_is_said_before_a_prompt_was_read_and_an_answer_written():
    book = make_book()
    assert book.pace(PREFILL.ref) is None
    learn_reads(book, PREFILL)
    assert book.pace(PREFILL.ref) is None
    learn_steps(book, DECODE[0])
    assert book.pace(PREFILL.ref) is not None


@pytest.mark.parametrize("tokens", [20, 90, 250, 1_000, 4_000])
def test_prompts_of_any_length_are_foretold_from_a_few(tokens):
    book = make_book()
    learn_reads(book, PREFILL, (30, 300, 1_500, 60, 800, 2_000) * 2)
    learn_steps(book, DECODE[0])
    assert book.pace(PREFILL.ref).read_s(tokens) == pytest.approx(read_s(tokens), rel=0.25)


def test_a_cached_prefix_makes_reading_shorter():
    book = make_book()
    learn_reads(book, PREFILL)
    learn_steps(book, DECODE[0])
    pace = book.pace(PREFILL.ref)
    assert pace.read_s(1_500, 1_400) < 0.3 * pace.read_s(1_500)


def test_steps_are_foretold_for_more_streams_than_were_seen():
    book = make_book()
    learn_reads(book, PREFILL)
    learn_steps(book, DECODE[0])
    assert book.pace(DECODE[0].ref).token_s(16) == pytest.approx(0.057 + 0.0011 * 16, rel=0.05)


def test_a_decode_worker_that_read_only_short_prompts_is_known_to_be_slow_with_long_ones():
    book = make_book()
    learn_reads(book, PREFILL)
    learn_reads(book, DECODE[0], (20, 30, 40) * 20)
    learn_steps(book, DECODE[0])
    assert book.pace(DECODE[0].ref).read_s(6_000) == pytest.approx(read_s(6_000), rel=0.3)


def test_a_slow_worker_differs_from_its_pool_and_a_new_one_has_the_pools_pace():
    book = make_book()
    for _ in range(4):
        learn_reads(book, DECODE[0])
        learn_reads(book, DECODE[1], factor=2.0)
        learn_steps(book, DECODE[0])
    slow, fast, new = (book.pace(DECODE[index].ref).read_s(1_000) for index in (1, 0, 2))
    assert slow > 1.6 * fast
    assert fast < new < slow


def test_a_restarted_engine_has_its_pools_pace_again():
    book = make_book()
    for _ in range(4):
        learn_reads(book, DECODE[0])
        learn_reads(book, DECODE[1], factor=3.0)
        learn_steps(book, DECODE[0])
    restarted = WorkerRef("d1", "2")
    assert book.pace(restarted).read_s(1_000) < 0.8 * book.pace(DECODE[1].ref).read_s(1_000)
    book.learn_read(restarted, 1_000, 0, read_s(1_000))
    assert book.pace(DECODE[1].ref).read_s(1_000) == pytest.approx(book.pace(DECODE[2].ref).read_s(1_000)), (
        "what the engine was like before its restart is forgotten"
    )


def test_another_models_readings_are_no_help():
    book = make_book()
    learn_reads(book, PREFILL)
    learn_steps(book, PREFILL)
    assert book.pace(OTHER.ref) is None


def test_fetching_takes_nothing_until_a_worker_of_the_model_has_fetched():
    book = make_book()
    learn_reads(book, PREFILL)
    learn_steps(book, DECODE[0])
    assert book.pace(DECODE[0].ref).fetch_s(3_000) == 0
    for tokens in (100, 1_500, 700) * 3:
        book.learn_fetch(DECODE[0].ref, tokens, 0.004 + 5e-6 * tokens)
    assert book.pace(DECODE[1].ref).fetch_s(3_000) == pytest.approx(0.019, rel=0.05)


@pytest.mark.parametrize("times", [3.0, 20.0, 100.0, 0.05])
def test_a_network_that_changed_for_good_is_believed_within_thirty_kv_transfers(times):
    book, chance = make_book(), Random(1)  # noqa: S311 - a spread of sizes, no secret
    learn_reads(book, PREFILL)
    learn_steps(book, DECODE[0])
    for number in range(530):
        tokens = chance.randint(500, 8_000)
        true_s = (0.005 + 1.3e-5 * tokens) * chance.uniform(0.9, 1.1)
        book.learn_fetch(DECODE[0].ref, tokens, true_s * (times if number >= 500 else 1.0))
    assert 0.5 < book.pace(DECODE[0].ref).fetch_s(6_000) / (0.083 * times) < 2.0


@pytest.mark.parametrize("times", [3.0, 20.0])
def test_an_engine_that_became_slow_for_good_is_believed_within_thirty_prompts(times):
    book, chance = make_book(), Random(1)  # noqa: S311 - a spread of sizes, no secret
    learn_steps(book, DECODE[0])
    for number in range(530):
        tokens = chance.randint(50, 4_000)
        factor = times if number >= 500 and number % 2 else 1.0
        learn_reads(book, DECODE[number % 2], (tokens,), factor)
    for _ in range(15):
        learn_reads(book, DECODE[1], (chance.randint(50, 4_000),), times)
    assert 0.5 < book.pace(DECODE[1].ref).read_s(3_000) / (read_s(3_000) * times) < 2.0
    assert book.pace(DECODE[0].ref).read_s(3_000) == pytest.approx(read_s(3_000), rel=0.3)


def test_one_kv_transfer_in_three_that_hangs_makes_no_network_slow():
    book, chance = make_book(), Random(1)  # noqa: S311 - a spread of sizes, no secret
    learn_reads(book, PREFILL)
    learn_steps(book, DECODE[0])
    for number in range(500):
        tokens = chance.randint(500, 8_000)
        book.learn_fetch(
            DECODE[0].ref, tokens, (0.005 + 1.3e-5 * tokens) * (100.0 if number % 3 == 0 else 1.0)
        )
    assert book.pace(DECODE[0].ref).fetch_s(6_000) < 2.0 * 0.083


def test_readings_without_a_duration_are_left_out():
    book = make_book()
    book.learn_read(PREFILL.ref, 100, 0, 0.0)
    learn_steps(book, PREFILL)
    assert book.pace(PREFILL.ref) is None


def test_where_no_placement_needs_speeds_a_share_of_the_answers_is_learned_from():
    book = EngineSpeeds(DECODE, samples=True)
    for _ in range(50):
        assert book.is_due()
        learn_steps(book, DECODE[0])
    due = [book.is_due() for _ in range(8_000)]
    assert sum(due) == pytest.approx(1_000, rel=0.1)
    # Of eight engines that answer in turn, each is learned from.
    for engine in range(8):
        assert sum(due[engine::8]) == pytest.approx(125, rel=0.4)


def test_where_placements_need_speeds_every_answer_is_learned_from():
    book = make_book()
    for _ in range(60):
        learn_steps(book, DECODE[0])
    assert all(book.is_due() for _ in range(100))
