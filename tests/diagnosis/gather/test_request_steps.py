"""The steps of one request's engines are read, and what is missing is said."""

import pytest

from phasewise.clients.timeline_feed import TimelineFeed
from phasewise.diagnosis.gather.request_steps import request_steps
from phasewise.diagnosis.observed.observation import WatchedEngine
from phasewise.fake_engine.fleet import running_engines
from tests.gateway.harness import ADMIN, eventually, running_gateway


@pytest.fixture
async def served():
    """An engine, and the timeline of a request that it served."""
    async with running_engines(1) as (engine,), running_gateway([engine]) as gateway:
        await gateway.chat(stream=True)
        await eventually(lambda: len(gateway.app.gateway.timelines) > 0)
        (timeline,) = await TimelineFeed(gateway.client, ADMIN).read()
        yield engine, timeline


def watched(engine, **fields):
    return WatchedEngine(**{"name": "w0", "url": engine.base_url, "steps_url": engine.steps_url, **fields})


async def test_the_steps_hold_the_requests_end(served):
    engine, timeline = served
    found = await request_steps(timeline, (watched(engine), watched(engine, name="unasked")))
    assert found.missing == ()
    (log,) = found.logs["w0"]
    assert log.finished(timeline.attempts[0].engine_request_id) is not None
    assert set(found.logs) == {"w0"}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"steps_url": None}, "w0 has no step recorder"),
        ({"name": "gone"}, "w0 has no step recorder"),
        ({"steps_url": "http://127.0.0.1:9"}, "no step recorder answers at http://127.0.0.1:9"),
    ],
)
async def test_an_engine_without_a_recorder_is_named(served, fields, why):
    engine, timeline = served
    found = await request_steps(timeline, (watched(engine, **fields),))
    assert found.logs == {}
    assert found.missing[0].startswith(why)


async def test_an_engine_that_was_restarted_since_keeps_no_steps_of_it(served):
    engine, timeline = served
    await engine.restart()
    (why,) = (await request_steps(timeline, (watched(engine),))).missing
    assert why.startswith("w0 keeps no steps from before this request ended")
