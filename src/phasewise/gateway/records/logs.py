"""The gateway's log on standard error: its own lines, the server's, and one per request if configured.

It never holds a prompt, an answer or a key: of requests only fields of their timelines, of errors their kind
and place but not their message, which may quote a client.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Container
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Literal

import orjson

from phasewise.core.latency import e2e_s, ttft_s
from phasewise.core.timeline import Timeline
from phasewise.fleet.config import LogConfig

OURS, SERVERS, LOOPS = "phasewise", "uvicorn.error", "asyncio"
NO_MODEL = "none"
"""Shown for a model that no worker serves: its name may be any text from a client."""

_FIELDS = "request_fields"
_ExcInfo = (
    tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None] | bool | None
)

requests_logger = logging.getLogger("phasewise.requests")


def set_up_logging(config: LogConfig) -> None:
    """Send the logs of gateway, server and event loop to standard error, in the configured format."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(config.format))
    for name, level in ((OURS, logging.INFO), (SERVERS, logging.WARNING), (LOOPS, logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(level)
        logger.propagate = False


class RequestLog:
    """Writes a line for every request that has ended; a TimelineSink."""

    def __init__(self, models: Container[str]) -> None:
        self._models = models

    def record(self, timeline: Timeline) -> None:
        """Write the request's line."""
        fields = request_fields(timeline, self._models)
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
