"""The shortest way to an engine and back, over a connection that is open already."""

from phasewise.diagnosis.gather.engine_watch import MOST_READINGS, RoundTrip
from phasewise.fake_engine.fleet import running_engines
from tests.real_engine import free_port


async def test_the_shortest_of_several_counts_and_they_come_to_an_end():
    async with running_engines(1) as (engine,):
        trip = RoundTrip(engine.base_url)
        assert trip.shortest_s is None
        while trip.wants_more:
            await trip.take()
        trip.close()
    assert 0 < trip.shortest_s < 0.5
    assert len(trip._readings_s) == MOST_READINGS


async def test_the_opening_of_the_connection_is_not_part_of_the_way():
    ticks = iter(range(100))
    async with running_engines(1) as (engine,):
        trip = RoundTrip(engine.base_url, clock=lambda: float(next(ticks)))
        await trip.take()
        trip.close()
    # Two exchanges, each between two looks at the clock; only the second is kept.
    assert (next(ticks), trip.shortest_s) == (4, 1.0)


async def test_an_address_without_such_paths_is_asked_once_and_let_be(fake_engine):
    trip = RoundTrip(f"{fake_engine.base_url}/nowhere")
    await trip.take()
    trip.close()
    assert trip.shortest_s is None
    assert not trip.wants_more


async def test_nobody_there_is_no_reading_and_no_error():
    trip = RoundTrip(f"http://127.0.0.1:{free_port()}")
    await trip.take()
    trip.close()
    assert trip.shortest_s is None
    assert trip.wants_more
