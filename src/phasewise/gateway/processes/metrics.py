"""The metrics of all processes of a gateway as one text, whose counters never go back.

Each process keeps in a file what it is about to report. Of one that has died the file counts, and its
successor begins with it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from pathlib import Path

from phasewise.gateway.guard import ErrorGuard
from phasewise.gateway.processes.membership import Membership
from phasewise.gateway.processes.siblings import Question
from phasewise.gateway.records.metric_families import (
    BODY_BYTES,
    ENGINES_NEEDED,
    WAITING,
    WORKER_REQUESTS,
)
from phasewise.gateway.records.metrics import PrometheusMetrics

KEEP_EVERY_S = 1.0
SUMMED_GAUGES = frozenset(it.name.encode() for it in (BODY_BYTES, ENGINES_NEEDED, WAITING, WORKER_REQUESTS))
_NAME = re.compile(r"metrics-(\d+)")


class AllMetrics:
    """Adds up the metrics of all processes; without a `membership` there is one."""

    def __init__(self, metrics: PrometheusMetrics, membership: Membership | None = None) -> None:
        self._metrics = metrics
        self._siblings = None if membership is None else membership.siblings
        self._folder = None if membership is None else membership.folder
        self._before = b""
        if self._siblings is not None:
            self._siblings.answers["metrics"] = self._answer
            self._before = counters_of(self._kept(self._siblings.column))

    async def text(self) -> bytes:
        """What Prometheus scrapes."""
        if self._siblings is None or self._folder is None:
            return self._metrics.text()
        texts = {self._siblings.column: self.keep()}
        texts.update(await self._siblings.ask_all("metrics"))
        living = set(self._siblings.columns)
        for column in self._columns() - texts.keys():
            kept = self._kept(column)
            texts[column] = kept if column in living else counters_of(kept)
        return merged(texts.values())

    async def run(self) -> None:
        """Keep it all the time, until cancelled: a process that is killed keeps nothing more."""
        guard = ErrorGuard("keeping the metrics of this process")
        while True:
            await asyncio.sleep(KEEP_EVERY_S)
            with guard:
                self.keep()

    def keep(self, *, afresh: bool = False) -> bytes:
        """Keep what this process has counted; that of its predecessor is in it."""
        text = self._metrics.text(afresh=afresh)
        if self._before:
            text = merged([text, self._before])
        if self._siblings is not None and self._folder is not None:
            path = self._path(self._siblings.column)
            new = path.with_suffix(".new")
            new.write_bytes(text)
            new.rename(path)
        return text

    async def _answer(self, _question: Question) -> bytes:
        return self.keep()

    def _columns(self) -> set[int]:
        found = (_NAME.fullmatch(it.name) for it in self._folder.iterdir()) if self._folder else ()
        return {int(it[1]) for it in found if it is not None}

    def _kept(self, column: int) -> bytes:
        try:
            return self._path(column).read_bytes()
        except OSError:
            return b""

    def _path(self, column: int) -> Path:
        return Path(self._folder or "") / f"metrics-{column}"


def merged(texts: Iterable[bytes]) -> bytes:
    """One text: counters, histograms and some gauges are added up, of the other gauges the largest counts."""
    heads: dict[bytes, dict[bytes, None]] = {}
    values: dict[bytes, dict[bytes, float]] = {}
    for family, lines in (it for text in texts for it in _families(text)):
        of = values.setdefault(family, {})
        heads.setdefault(family, {}).update(dict.fromkeys(it for it in lines if it[:1] == b"#"))
        adds = not _is_gauge(lines) or family in SUMMED_GAUGES
        for line in lines:
            if line[:1] != b"#":
                name, _, number = line.rpartition(b" ")
                known, new = of.get(name), float(number)
                of[name] = new if known is None else known + new if adds else max(known, new)
    lines = []
    for family, of in values.items():
        lines += heads[family]
        lines += [b"%b %b" % (name, _written(it)) for name, it in of.items()]
    return b"\n".join(lines) + b"\n"


def counters_of(text: bytes) -> bytes:
    """The text without what is only true now."""
    return b"\n".join(line for _, lines in _families(text) if not _is_gauge(lines) for line in lines)


def _families(text: bytes) -> Iterable[tuple[bytes, list[bytes]]]:
    lines: list[bytes] = []
    for line in text.splitlines():
        if line.startswith(b"# HELP ") and lines:
            yield lines[0].split(b" ", 3)[2], lines
            lines = []
        lines.append(line)
    if lines:
        yield lines[0].split(b" ", 3)[2], lines


def _is_gauge(lines: list[bytes]) -> bool:
    return lines[1].endswith(b" gauge")


def _written(number: float) -> bytes:
    return (str(int(number)) if number.is_integer() else repr(number)).encode()
