"""Sends spans to an OpenTelemetry backend: OTLP over HTTP, by the SDK's exporter in a thread of its own."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from phasewise import __version__
from phasewise.core.errors import ConfigError
from phasewise.core.timeline import Timeline
from phasewise.core.trace_context import SAMPLED, SpanKind, TraceLoss, TraceSpan, span_id

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExportResult

logger = logging.getLogger("phasewise.traces")

SERVICE = "phasewise-gateway"
DEFAULT_PATH = "/v1/traces"
MOST_QUEUED_SPANS = 8_192
"""About a thousand requests; while so many wait, further ones are dropped."""
SPANS_PER_BATCH = 128
"""The thread that encodes a batch shares the interpreter with every stream, so a batch is small."""
SENT_EVERY_S = 1.0
EXPORT_TIMEOUT_S = 5.0
CLOSE_WITHIN_S = 2.0


class OtlpTraces:
    """A TraceExporter. `dropped` counts requests by why their spans were not sent.

    Headers, certificates and compression come from the OTEL_EXPORTER_OTLP_* variables, as for every SDK.
    """

    def __init__(self, endpoint: str, setting: str = "gateway.traces") -> None:
        trace, sdk, export, resources, scope, otlp = _packages(setting)
        # The SDK logs every batch that fails; here one line says so until a batch arrives again.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        url = endpoint if urlsplit(endpoint).path.strip("/") else endpoint.rstrip("/") + DEFAULT_PATH
        self.dropped = dict.fromkeys(TraceLoss, 0)
        self._trace, self._span = trace, sdk.ReadableSpan
        self._kinds = {kind: trace.SpanKind[kind.name] for kind in SpanKind}
        self._flags = trace.TraceFlags(SAMPLED)
        self._resource = resources.Resource.create(
            {"service.name": os.environ.get("OTEL_SERVICE_NAME", SERVICE), "service.version": __version__}
        )
        self._scope = scope.InstrumentationScope("phasewise", __version__)
        self._queued = 0
        self._exporter = _Counted(otlp.OTLPSpanExporter(url, timeout=EXPORT_TIMEOUT_S), url, self.dropped)
        self._processor = export.BatchSpanProcessor(
            self._exporter, 2 * MOST_QUEUED_SPANS, SENT_EVERY_S * 1e3, SPANS_PER_BATCH
        )

    def send(self, timeline: Timeline, spans: Sequence[TraceSpan]) -> None:
        """Queue the spans of one request, or drop them all while too many wait."""
        if self._queued - self._exporter.done + len(spans) > MOST_QUEUED_SPANS:
            self.drop(TraceLoss.QUEUE_FULL)
            return
        self._queued += len(spans)
        for span in self._readable(timeline, spans):
            self._processor.on_end(span)

    def drop(self, reason: TraceLoss) -> None:
        """Count a request whose spans are not sent."""
        self.dropped[reason] += 1

    def close(self, within_s: float = CLOSE_WITHIN_S) -> None:
        """Send what waits, but do not wait long for a backend that does not answer."""
        closing = threading.Thread(target=self._processor.shutdown, daemon=True)
        closing.start()
        closing.join(within_s)
        self._exporter.shutdown()

    def _readable(self, timeline: Timeline, spans: Sequence[TraceSpan]) -> list[ReadableSpan]:
        trace, request_id = timeline.trace, timeline.request_id
        if trace is None:
            raise ValueError("the timeline belongs to no trace")
        trace_id = int(trace.trace_id, 16)
        contexts = [
            self._trace.SpanContext(trace_id, span_id(request_id, number), False, self._flags)
            for number in range(len(spans))
        ]
        client = None
        if trace.parent_id is not None:
            client = self._trace.SpanContext(trace_id, int(trace.parent_id, 16), True, self._flags)
        return [
            self._span(
                span.name,
                context,
                client if span.parent is None else contexts[span.parent],
                self._resource,
                span.attributes,
                kind=self._kinds[span.kind],
                instrumentation_scope=self._scope,
                status=self._status(span.error),
                start_time=_unix_ns(timeline, span.start_s),
                end_time=_unix_ns(timeline, span.end_s),
            )
            for span, context in zip(spans, contexts, strict=True)
        ]

    def _status(self, error: str | None) -> Any:  # noqa: ANN401 - the SDK's Status
        codes = self._trace.StatusCode
        return self._trace.Status(codes.UNSET) if error is None else self._trace.Status(codes.ERROR, error)


class _Counted:
    """The SDK's exporter, counting what it has done; called by the SDK's thread alone."""

    def __init__(self, exporter: Any, url: str, dropped: dict[TraceLoss, int]) -> None:  # noqa: ANN401 - the SDK's
        self.done = 0
        self._exporter = exporter
        self._url = url
        self._dropped = dropped
        self._works = True
        self._closed = threading.Lock()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send a batch; spans that cannot be sent are dropped, and their requests counted."""
        result: SpanExportResult = self._exporter.export(spans)
        self.done += len(spans)
        works = result.name == "SUCCESS"
        if not works:
            self._dropped[TraceLoss.NOT_EXPORTED] += sum(span.kind.name == "SERVER" for span in spans)
        if works != self._works:
            self._works = works
            if works:
                logger.info("traces are accepted again at %s", self._url)
            else:
                logger.warning("traces are dropped: %s does not accept them", self._url)
        return result

    def shutdown(self) -> None:
        """Stop sending; what still waits is dropped."""
        if self._closed.acquire(blocking=False):
            self._exporter.shutdown()


def _unix_ns(timeline: Timeline, offset_s: float) -> int:
    return round((timeline.started_unix_s + offset_s) * 1e9)


def _packages(setting: str) -> list[Any]:
    try:
        return [
            import_module(f"opentelemetry.{name}")
            for name in (
                *("trace", "sdk.trace", "sdk.trace.export", "sdk.resources", "sdk.util.instrumentation"),
                "exporter.otlp.proto.http.trace_exporter",
            )
        ]
    except ImportError:
        raise ConfigError(
            f"{setting} is set, but OpenTelemetry's packages are not installed",
            hint="pip install 'phasewise[otel]'",
        ) from None
