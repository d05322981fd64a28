"""The log has one line for each change of a worker's state, however many requests meet it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest

from phasewise.fake_engine.fleet import running_engines
from phasewise.fleet.config import WorkerConfig
from phasewise.gateway import app
from phasewise.gateway.records import worker_log
from phasewise.gateway.records.worker_log import WorkerLog
from phasewise.scheduling.world import ClusterView, Health
from tests.builders import make_worker
from tests.gateway.harness import eventually, running_gateway

NOTHING_LISTENS = "http://127.0.0.1:9"


class Watched:
    """One worker, a clock and a circuit that tests set."""

    def __init__(self, monkeypatch):
        self.cluster = ClusterView([make_worker("a")])
        self.open = False
        self.now_s = 1000.0
        self.log = WorkerLog(self.cluster, lambda _ref: self.open, 1.0)
        monkeypatch.setattr(worker_log.time, "time", lambda: self.now_s)

    def looks(self, times=1, seconds=1.0):
        for _ in range(times):
            self.now_s += seconds
            self.log.look("a")


@pytest.fixture
def watched(monkeypatch, caplog):
    caplog.set_level(logging.INFO, "phasewise.gateway")
    return Watched(monkeypatch)


def test_a_worker_that_goes_down_and_returns_is_two_lines(watched, caplog):
    watched.cluster.mark_up("a", "1")
    watched.looks(5)
    caplog.clear()
    watched.cluster.mark_down("a", "connection refused")
    watched.looks(24)
    watched.cluster.mark_up("a", "1")
    watched.looks(5)
    down, up = [record.getMessage() for record in caplog.records]
    assert down == "a is down: connection refused; it gets no requests and is checked again every 1 s"
    assert up == "a is up again after 24 s"
    assert caplog.records[0].levelno == logging.WARNING


def test_a_worker_that_was_down_at_the_start_is_up_for_the_first_time_when_it_answers(watched, caplog):
    watched.cluster.mark_down("a", "connection refused")
    watched.looks(3)
    watched.cluster.mark_up("a", "1")
    watched.looks(2)
    assert [record.getMessage() for record in caplog.records][1:] == ["a is up and serves m"]


def test_a_restart_between_two_looks_is_a_line(watched, caplog):
    watched.cluster.mark_up("a", "1")
    watched.looks()
    watched.cluster.mark_up("a", "2")
    watched.looks(3)
    assert [record.getMessage() for record in caplog.records][1:] == ["a has restarted"]


def test_another_engine_under_the_same_name_has_not_restarted(watched, caplog):
    watched.cluster.mark_up("a", "1")
    watched.looks()
    watched.cluster.set_workers([replace(make_worker("a"), url="http://elsewhere:1")])
    watched.cluster.mark_up("a", "2")
    caplog.clear()
    watched.looks()
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("a is up and serves")


def test_a_circuit_that_opens_and_closes_is_two_lines(watched, caplog):
    watched.cluster.mark_up("a", "1")
    watched.looks()
    caplog.clear()
    watched.open = True
    watched.looks(4)
    watched.open = False
    watched.looks(4)
    opened, closed = [record.getMessage() for record in caplog.records]
    assert "circuit is open" in opened
    assert "recovered" in closed


def test_what_the_progress_watch_reports_is_not_reported_twice(watched, caplog):
    watched.cluster.mark_up("a", "1")
    watched.looks()
    caplog.clear()
    watched.cluster.mark_still("a", Health.HUNG, "makes no step")
    watched.looks(3)
    watched.cluster.mark_up("a", "1")
    watched.looks()
    assert not caplog.records


def test_it_knows_since_when_a_worker_is_in_its_state(watched):
    assert watched.log.reports()[0].since_unix_s is None
    watched.cluster.mark_up("a", "1")
    watched.looks()
    watched.cluster.mark_down("a", "gone")
    watched.looks(10)
    assert watched.log.reports()[0].since_unix_s == 1002.0


async def test_many_requests_to_a_dead_engine_are_one_line(caplog):
    caplog.set_level(logging.INFO, "phasewise.gateway")
    dead = WorkerConfig(name="a", url=NOTHING_LISTENS, model="fake-model")
    async with running_gateway([dead]) as gateway:
        statuses = [(await gateway.chat()).status for _ in range(8)]
        await eventually(lambda: gateway.app.gateway.cluster.state("a").note)
    lines = [record.getMessage() for record in caplog.records if "a is down" in record.getMessage()]
    assert statuses == [503] * 8
    assert len(lines) == 1
    assert f"{NOTHING_LISTENS} cannot be reached (Connection refused)" in lines[0]


async def test_a_change_of_health_is_recorded_at_once(monkeypatch):
    monkeypatch.setattr(app, "POLL_INTERVAL_S", 3600.0)
    written = []

    class Record:
        write = staticmethod(written.append)

    async with running_engines(1) as (engine,), running_gateway([engine]) as gateway:
        gateway.app.run_record = Record
        keeping = asyncio.create_task(gateway.app._keep_record(Record))
        await eventually(lambda: written)
        engine.die()
        await eventually(lambda: written[-1][0].health == "down")
        keeping.cancel()
