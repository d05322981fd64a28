"""The metrics of all processes of a gateway as one text, whose counters never go back.

A process writes what it has counted to a file before it reports it. The supervisor adds the file of a process
that has ended to those of all that ended before.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from phasewise.fleet.local.run_files import write_private
from phasewise.gateway.processes.peers import Peers
from phasewise.gateway.records.metric_families import (
    BODY_BYTES,
    ENGINES_NEEDED,
    WAITING,
    WORKER_REQUESTS,
)

if TYPE_CHECKING:
    # The supervisor adds up texts, and needs nothing of what makes them.
    from phasewise.gateway.records.metrics import PrometheusMetrics

SUMMED_GAUGES = frozenset(
    family.name.encode() for family in (BODY_BYTES, ENGINES_NEEDED, WAITING, WORKER_REQUESTS)
)
MOST_ENDED_KNOWN = 200
"""Processes that have ended and are known by number: more than end while a question is answered."""
_COUNTERS_NAME = re.compile(r"counters-(\d+)")
_BEFORE_HELP = re.compile(rb"^(?=# HELP )", re.MULTILINE)


class CounterTotals:
    """Adds up the metrics of all processes."""

    def __init__(self, metrics: PrometheusMetrics, peers: Peers) -> None:
        self._metrics = metrics
        self._peers = peers
        self._one_at_a_time = asyncio.Lock()

    async def own(self, *, afresh: bool = False) -> bytes:
        """The metrics of this process alone, once they are kept."""
        async with self._one_at_a_time:
            text = self._metrics.text(afresh=afresh)
            if self._peers.folder is not None:
                path = _counters_file(self._peers.folder, self._peers.process)
                with suppress(OSError):  # a full disk must not hide the metrics
                    await asyncio.to_thread(write_private, path, text)
        return text

    async def text(self) -> bytes:
        """What Prometheus scrapes."""
        own, others = await asyncio.gather(self.own(), self._peers.ask_all("GET", "/metrics"))
        if self._peers.folder is None:
            return own
        texts = {self._peers.process: own, **{process: reply.body for process, reply in others.items()}}
        # In a thread: streams must not wait for it.
        return await asyncio.to_thread(total, self._peers.folder, texts)


def total(folder: Path, texts: Mapping[int, bytes]) -> bytes:
    """These texts of processes, and what the others had counted when they last reported it."""
    # Files are read before the sum of those that ended: one that moves there in between is counted once.
    kept = {
        int(name[1]): counters_of(_read(path))
        for path in folder.iterdir()
        if (name := _COUNTERS_NAME.fullmatch(path.name)) is not None and int(name[1]) not in texts
    }
    ended, known = _ended(folder)
    living = [text for process, text in {**kept, **texts}.items() if process not in known]
    return living[0] if not ended and len(living) == 1 else merged([*living, ended])


def add_ended(folder: Path, process: int) -> None:
    """A process has ended: what it had counted stays."""
    path = _counters_file(folder, process)
    if text := _read(path):
        ended, known = _ended(folder)
        numbers = b" ".join(b"%d" % each for each in (*known, process)[-MOST_ENDED_KNOWN:])
        write_private(_ended_file(folder), numbers + b"\n" + merged([ended, counters_of(text)]))
        path.unlink()


def _ended(folder: Path) -> tuple[bytes, list[int]]:
    """The sum of the processes that have ended, and which these are."""
    numbers, _, text = _read(_ended_file(folder)).partition(b"\n")
    return text, [int(each) for each in numbers.split()]


def _ended_file(folder: Path) -> Path:
    return folder / "counters-ended"


def _counters_file(folder: Path, process: int) -> Path:
    return folder / f"counters-{process}"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def merged(texts: Iterable[bytes]) -> bytes:
    """One text: counters, histograms and some gauges are added up, of the other gauges the largest counts."""
    heads: dict[bytes, list[bytes]] = {}
    values: dict[bytes, dict[bytes, float]] = {}
    for lines in (lines for text in texts for lines in _families(text)):
        family = lines[0].split(b" ", 3)[2]
        heads.setdefault(family, lines[:2])
        of = values.setdefault(family, {})
        adds = not _is_gauge(lines) or family in SUMMED_GAUGES
        for line in lines[2:]:
            name, _, number = line.rpartition(b" ")
            new = float(number)
            of[name] = of.get(name, 0.0) + new if adds else max(of.get(name, new), new)
    written = []
    for family, of in values.items():
        written += heads[family]
        written += [b"%b %b" % (name, _written(number)) for name, number in of.items()]
    return b"\n".join(written) + b"\n"


def counters_of(text: bytes) -> bytes:
    """The text without what is only true now."""
    return b"\n".join(line for lines in _families(text) if not _is_gauge(lines) for line in lines)


def _families(text: bytes) -> list[list[bytes]]:
    """The lines of each family: its help, its type and its samples."""
    return [family.splitlines() for family in _BEFORE_HELP.split(text) if family]


def _is_gauge(lines: list[bytes]) -> bool:
    return lines[1].endswith(b" gauge")


def _written(number: float) -> bytes:
    return (str(int(number)) if number.is_integer() else repr(number)).encode()
