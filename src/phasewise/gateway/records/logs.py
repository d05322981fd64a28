"""The gateway's log on standard error: its own lines, the server's, and one per request if configured.

What is rejected has a line for each kind and tenant every few seconds.

It never holds a prompt, an answer or a key: of requests only fields of their timelines, of errors their kind
and place but not their message, which may quote a client.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import traceback
from collections import Counter, deque
from collections.abc import Callable, Container
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Literal

import orjson

from phasewise.core.decision import RejectReason
from phasewise.core.errors import RejectionKind
from phasewise.core.latency import e2e_s, ttft_s
from phasewise.core.own_rejections import OWN_REJECTIONS
from phasewise.core.timeline import Outcome, Timeline
from phasewise.core.units import counted
from phasewise.fleet.config import LogConfig

OURS, SERVERS, LOOPS = "phasewise", "uvicorn.error", "asyncio"
NO_MODEL = "none"
"""Shown for a model that no worker serves: its name may be any text from a client."""

MOST_LINES_KEPT = 10_000
"""Lines that wait to be written; more are dropped and counted."""
WRITTEN_WITHIN_S = 1.0
"""How long the process waits at its end for the last lines to be written."""
_FIELDS = "request_fields"
_ExcInfo = (
    tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None] | bool | None
)

REJECTIONS_EVERY_S = 5.0
MOST_REJECTION_LINES = 20
"""Of one moment; the tenants with fewer rejections then share a line for each kind."""

gateway_logger = logging.getLogger("phasewise.gateway")
requests_logger = logging.getLogger("phasewise.requests")


def set_up_logging(config: LogConfig) -> LineWriter:
    """Send the logs of gateway, server and event loop to standard error, in the configured format."""
    handler = LineWriter(sys.stderr.fileno())
    _log_to(handler, config)
    return handler


def set_up_logging_without_threads(config: LogConfig) -> None:
    """The same for a process that forks: a thread would be missing in its children."""
    _log_to(logging.StreamHandler(), config)


def _log_to(handler: logging.Handler, config: LogConfig) -> None:
    handler.setFormatter(LineFormatter(config.format))
    for name, level in ((OURS, logging.INFO), (SERVERS, logging.WARNING), (LOOPS, logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(level)
        logger.propagate = False


class LineWriter(logging.Handler):
    """Writes lines in a thread of its own: nobody may read standard error, and then a write never ends.

    `dropped` counts the lines for which too many others waited.
    """

    def __init__(self, fd: int, most_kept: int = MOST_LINES_KEPT) -> None:
        super().__init__()
        self.dropped = 0
        # Not Python's stream: its lock would be held for ever, and the process could not end.
        self._fd = fd
        self._most_kept = most_kept
        self._lines: deque[str] = deque()
        self._changed = threading.Condition(threading.Lock())
        self._writing = False
        threading.Thread(target=self._write, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Add the record's line to those that wait."""
        try:
            line = self.format(record)
        except Exception:
            self.handleError(record)
            return
        with self._changed:
            if len(self._lines) >= self._most_kept:
                self.dropped += 1
                return
            self._lines.append(line)
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until all lines are written, but not for long."""
        with self._changed:
            self._changed.wait_for(lambda: not self._lines and not self._writing, WRITTEN_WITHIN_S)

    def _write(self) -> None:
        while True:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: bool(self._lines))
                lines, self._lines = self._lines, deque()
                self._writing = True
            left = "".join(f"{line}\n" for line in lines).encode(errors="replace")
            try:
                while left:
                    left = left[os.write(self._fd, left) :]
            except OSError:
                # The reader has gone, so nobody misses these lines.
                with self._changed:
                    self.dropped += len(lines)


class RequestLog:
    """Writes a line for every request that has ended; a TimelineSink."""

    def __init__(self, models: Callable[[], Container[str]]) -> None:
        self._models = models

    def record(self, timeline: Timeline) -> None:
        """Write the request's line."""
        fields = request_fields(timeline, self._models())
        requests_logger.info("request ended", extra={_FIELDS: fields})


def request_fields(timeline: Timeline, models: Container[str]) -> dict[str, Any]:
    """The log fields of a request, without unknown ones."""
    serving = timeline.serving_attempt
    first_s, whole_s = ttft_s(timeline), e2e_s(timeline)
    fields = {
        "id": timeline.request_id,
        "tenant": timeline.tenant,
        "model": timeline.model if timeline.model in models else NO_MODEL,
        "outcome": timeline.outcome,
        "reason": timeline.reason,
        "worker": None if serving is None else serving.worker.name,
        "attempts": timeline.tries,
        "ttft_ms": None if first_s is None else round(first_s * 1e3, 1),
        "e2e_ms": None if whole_s is None else round(whole_s * 1e3, 1),
        "prompt_tokens": timeline.prompt_tokens,
        "output_tokens": timeline.output_tokens,
        "cache": None if timeline.cache is None else timeline.cache.result,
    }
    return {name: value for name, value in fields.items() if value is not None}


class LineFormatter(logging.Formatter):
    """One line per record: `time level logger message name=value...`, or JSON."""

    def __init__(self, form: Literal["text", "json"]) -> None:
        super().__init__()
        self._as_json = form == "json"

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        level, name, message = record.levelname.lower(), record.name, record.getMessage().strip()
        if name == LOOPS:
            # Further lines show the task that failed and its error message.
            message = message.partition("\n")[0]
        fields: dict[str, Any] = dict(getattr(record, _FIELDS, {}))
        if error := _kind_and_place(record.exc_info):
            fields["error"] = error
        if self._as_json:
            line = {"time": at, "level": level, "logger": name, "message": message, **fields}
            return orjson.dumps(line, default=str).decode()
        text = " ".join([at, level, name, message, *(f"{key}={value}" for key, value in fields.items())])
        return text.replace("\r", " ").replace("\n", " ")


def _kind_and_place(exc_info: _ExcInfo) -> str | None:
    """`KeyError at app.py:12 in build < ...`, the innermost place first."""
    error = exc_info[1] if isinstance(exc_info, tuple) else None
    if error is None:
        return None
    frames = traceback.extract_tb(error.__traceback__)
    places = [f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in reversed(frames)]
    kind = type(error).__name__
    return f"{kind} at {' < '.join(places)}" if places else kind


class RejectionLog:
    """Logs a line for each kind of rejection and each tenant every few seconds, with a count; a TimelineSink.

    Requests without a timeline are counted by their kind, in the metrics too. The tenant's name is the
    configuration's, and a request without a known key has none.
    """

    def __init__(self, count_in_metrics: Callable[[RejectReason | RejectionKind], None]) -> None:
        self._count_in_metrics = count_in_metrics
        self._pending: Counter[tuple[str, str | None]] = Counter()
        self._timer: asyncio.TimerHandle | None = None

    def record(self, timeline: Timeline) -> None:
        """A request has ended; what an engine rejected is not the gateway's."""
        if timeline.outcome is Outcome.REJECTED and timeline.reason in OWN_REJECTIONS:
            self._add(timeline.reason or "", timeline.tenant)

    def count(self, kind: RejectReason | RejectionKind) -> None:
        """A request was rejected that has no timeline."""
        self._count_in_metrics(kind)
        self._add(kind, None)

    def write(self) -> None:
        """Log what is pending now; called when the time is over, and when the gateway stops."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        pending, self._pending = self._pending, Counter()
        counts: Counter[tuple[str, str]] = Counter()
        for place, ((reason, tenant), count) in enumerate(pending.most_common()):
            own_line = "" if tenant is None else f" of tenant {tenant}"
            counts[reason, own_line if place < MOST_REJECTION_LINES else " of other tenants"] += count
        for (reason, whose), count in counts.items():
            own, what = OWN_REJECTIONS[reason], counted(count, "request")
            words = "rejected %s%s in the last %g s: %s, %s. hint: %s"
            gateway_logger.warning(words, what, whose, REJECTIONS_EVERY_S, reason, own.meaning, own.fix)

    def _add(self, reason: str, tenant: str | None) -> None:
        self._pending[reason, tenant] += 1
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(REJECTIONS_EVERY_S, self.write)
