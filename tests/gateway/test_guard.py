"""What runs as long as the gateway does goes on after an error that nobody foresaw."""

from __future__ import annotations

import asyncio
import logging

import pytest

from phasewise.fleet.config import EdgeLimits, GatewayConfig
from phasewise.gateway.guard import ErrorGuard
from phasewise.gateway.records.logs import LineFormatter
from phasewise.gateway.server import edge
from phasewise.gateway.server.client import ClientTimeouts, ClientWatch
from phasewise.gateway.server.edge import Edge, EdgeBounds
from phasewise.gateway.server.request_head import AllowedSites
from tests.gateway.harness import eventually


def test_each_kind_of_error_is_logged_once_by_kind_and_place_and_without_its_words(caplog):
    guard = ErrorGuard("watching")
    for error in (ValueError("a secret"), ValueError("a secret"), KeyError("a secret")):
        with guard:
            raise error
    lines = [LineFormatter("text").format(record) for record in caplog.records]
    assert [kind in line for kind, line in zip(("ValueError", "KeyError"), lines, strict=True)] == [
        True,
        True,
    ]
    assert all("watching" in line and "test_guard.py" in line for line in lines)
    assert "a secret" not in "".join(lines)


def test_being_cancelled_is_not_an_error(caplog):
    with pytest.raises(asyncio.CancelledError), ErrorGuard("watching"):
        raise asyncio.CancelledError
    assert not caplog.records


@pytest.mark.parametrize("watch", ["connections", "clients"])
async def test_a_watch_that_meets_an_error_looks_again(watch, monkeypatch, caplog):
    monkeypatch.setattr(edge, "LOOK_EVERY_S", 0.01)
    if watch == "clients":
        watching = ClientWatch(ClientTimeouts(look_every_s=0.01))
    else:
        watching = Edge(EdgeBounds.of(EdgeLimits()), lambda _kind: None, AllowedSites.of(GatewayConfig()))
    looks = []

    def look(now_s):
        looks.append(now_s)
        raise RuntimeError("not foreseen")

    monkeypatch.setattr(watching, "look", look)
    task = asyncio.create_task(watching.run())
    await eventually(lambda: len(looks) >= 3)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
