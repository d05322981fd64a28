"""Sends the traces that are worth keeping: a share of all requests, and those that were slow or failed."""

from __future__ import annotations

from collections.abc import Callable, Container

from phasewise.core.latency import meets
from phasewise.core.ports import TraceExporter
from phasewise.core.slo import Slo
from phasewise.core.timeline import Outcome, Timeline
from phasewise.core.trace_span import TraceLoss
from phasewise.gateway.records.logs import NO_MODEL
from phasewise.gateway.records.metric_families import CLIENTS_OWN
from phasewise.gateway.records.trace_spans import spans_of


class TraceSink:
    """A TimelineSink that decides when a request has ended whether its trace is kept.

    `slow_per_s` bounds how many are kept for being slow or failed: under overload, nearly all requests are.
    """

    def __init__(
        self,
        exporter: TraceExporter,
        slow_per_s: int,
        slo_of: Callable[[str], Slo],
        models: Callable[[], Container[str]],
    ) -> None:
        self._exporter = exporter
        self._slo_of = slo_of
        self._models = models
        self._slow_per_s = slow_per_s
        self._allowed = float(slow_per_s)
        self._counted_unix_s = 0.0

    def record(self, timeline: Timeline) -> None:
        """Send the request's spans if it was sampled, slow or failed."""
        trace = timeline.trace
        if trace is None or not trace.spans:
            return
        met = _met(timeline, self._slo_of(timeline.slo_class))
        if not trace.sampled and met:
            return
        if not trace.sampled and not self._may_keep(timeline.started_unix_s + timeline.ended_s):
            self._exporter.drop(TraceLoss.RATE_LIMITED)
            return
        model = timeline.model if timeline.model in self._models() else NO_MODEL
        self._exporter.send(timeline, spans_of(timeline, trace.operation, model, met=met))

    def _may_keep(self, now_unix_s: float) -> bool:
        """Take one from a token bucket that holds a second's worth."""
        passed_s = max(0.0, now_unix_s - self._counted_unix_s)
        self._counted_unix_s = now_unix_s
        self._allowed = min(self._slow_per_s, self._allowed + passed_s * self._slow_per_s)
        if self._allowed < 1.0:
            return False
        self._allowed -= 1.0
        return True


def _met(timeline: Timeline, slo: Slo) -> bool:
    """Whether nothing was wrong with how the request was served; a client's own mistakes count as served."""
    if timeline.reason in CLIENTS_OWN:
        return True
    return meets(timeline, slo) if timeline.generates else timeline.outcome is Outcome.SUCCEEDED
