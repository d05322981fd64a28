"""Every Prometheus metric of the gateway with its labels, and the label values.

docs/reference/metrics.md describes them for users.
"""

from __future__ import annotations

from phasewise.core.decision import RejectReason
from phasewise.core.errors import RejectionKind
from phasewise.gateway.records.metric_series import MetricFamily

NO_LABEL = "none"
"""The label of a request that reached no pool, names a model that no worker serves, or succeeded."""
OTHER_REASON = "other"
"""The label of a reason that is not in REASONS: free text must never create series."""
UNEXPLAINED = "unexplained"
TOKEN_KINDS = ("prompt", "cached", "output")
MET, MISSED = "met", "missed"
SPLIT, WHOLE = "split", "whole"
START, STREAM = "start", "stream"
SERVED, SHADOW = "served", "shadow"
DEFAULT_CLASS = "default"

REASONS = (
    *RejectReason,
    *RejectionKind,
    "engine_4xx",
    "client_left",
    "client_stalled",
    "gateway_error",
)
"""Every reason of a timeline or a rejection."""

CLIENTS_OWN = frozenset(
    {
        RejectReason.NO_WORKER_FOR_MODEL,
        RejectReason.REQUESTS_OVER_LIMIT,
        RejectReason.TOKENS_OVER_LIMIT,
        RejectReason.CONCURRENCY_OVER_LIMIT,
        *RejectionKind,
        "engine_4xx",
    }
)
"""Reasons that are the client's fault, or that end a request before its flow: one client's mistakes must not
lower goodput."""

# Finest where users notice: 0.1 to 5 s to the first token, 5 to 200 ms per token.
TTFT_BOUNDS_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0,
    30.0, 60.0, 120.0,
)  # fmt: skip
TPOT_BOUNDS_S = (
    0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0,
    2.5,
)  # fmt: skip
E2E_BOUNDS_S = (
    0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 300.0,
    600.0,
)  # fmt: skip
LOOK_UP_BOUNDS_S = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 10.0,
)  # fmt: skip

_PHASE_LABELS = ("model", "pool", "outcome")
TTFT = MetricFamily(
    "phasewise_ttft_seconds",
    "histogram",
    _PHASE_LABELS,
    "Head read to first content, of streamed requests that got any.",
    TTFT_BOUNDS_S,
)
TTFT_PART = MetricFamily(
    "phasewise_ttft_part_seconds",
    "histogram",
    (*_PHASE_LABELS, "part"),
    "The parts of time to first token; part unexplained is in no measured part (negative values count as 0).",
    TTFT_BOUNDS_S,
)
TPOT = MetricFamily(
    "phasewise_tpot_seconds",
    "histogram",
    _PHASE_LABELS,
    "Mean time per output token after the first, per streamed request.",
    TPOT_BOUNDS_S,
)
E2E = MetricFamily(
    "phasewise_e2e_seconds",
    "histogram",
    _PHASE_LABELS,
    "Head read to last content of requests that were answered in full, streamed or not.",
    E2E_BOUNDS_S,
)
REQUESTS = MetricFamily(
    "phasewise_requests_total",
    "counter",
    ("model", "outcome", "reason"),
    "Requests that ended, by outcome and, if they did not succeed, by reason.",
)
TOKENS = MetricFamily(
    "phasewise_tokens_total",
    "counter",
    ("model", "kind"),
    "Tokens as the engines counted them: prompt, cached (a part of prompt) and output.",
)
RETRIES = MetricFamily(
    "phasewise_retries_total",
    "counter",
    ("model",),
    "Attempts after a request's first that started the answer again.",
)
RESUMES = MetricFamily(
    "phasewise_resumes_total",
    "counter",
    ("model", "outcome"),
    "Attempts that resumed an answer that had broken off, by outcome.",
)
KV_TRANSFERS = MetricFamily(
    "phasewise_kv_transfers_total",
    "counter",
    ("outcome",),
    "Attempted KV transfers from a prefill to a decode worker, by outcome.",
)
PLACEMENTS = MetricFamily(
    "phasewise_placements_total",
    "counter",
    ("way",),
    "Requests whose first attempt was disaggregated (split), and those for which that cost more (whole).",
)
OBJECTIVES = MetricFamily(
    "phasewise_slo_requests_total",
    "counter",
    ("model", "slo_class", "result"),
    "Requests that could be served, by whether they met both objectives of their class, TTFT and TPOT.",
)
WORKER_UP = MetricFamily(
    "phasewise_worker_up", "gauge", ("worker", "pool"), "Whether the worker answered its last health check."
)
WORKER_STILL = MetricFamily(
    "phasewise_worker_stands_still",
    "gauge",
    ("worker", "pool"),
    "Whether the worker answers health checks but is out of service because its requests make no progress.",
)
WORKER_REQUESTS = MetricFamily(
    "phasewise_worker_requests", "gauge", ("worker", "pool"), "Requests under way on the worker."
)
WORKER_BREAKER_OPEN = MetricFamily(
    "phasewise_worker_breaker_open",
    "gauge",
    ("worker", "pool"),
    "Whether the worker's circuit is open because too many of its recent requests failed.",
)
KV_TRANSFER_RECOMPUTED = MetricFamily(
    "phasewise_kv_transfer_recomputed_tokens_total",
    "counter",
    ("worker",),
    "Prompt tokens that a decode worker computed again although a prefill worker had computed their KV.",
)
KV_TRANSFER_BYTES = MetricFamily(
    "phasewise_kv_transfer_bytes_total",
    "counter",
    ("worker",),
    "Bytes of KV that the decode worker's engine has fetched since it started.",
)
KV_TRANSFER_FAILING = MetricFamily(
    "phasewise_kv_transfer_failing_pairs",
    "gauge",
    ("worker",),
    "Prefill workers whose KV did not come to the decode worker, and was not proved to come since.",
)
KV_TRANSFER_PROOF_AGE = MetricFamily(
    "phasewise_kv_transfer_proof_age_seconds",
    "gauge",
    ("worker",),
    "Time since a request last proved a KV transfer to the decode worker.",
)
WAITING = MetricFamily(
    "phasewise_waiting_requests", "gauge", ("model",), "Requests that wait in the gateway for a worker, now."
)
ENGINES_NEEDED = MetricFamily(
    "phasewise_engines_needed",
    "gauge",
    ("model", "pool", "phase"),
    "Engines, as a fraction, that this gateway's requests need for a phase to meet the objectives, now.",
)
LOOP_LAG = MetricFamily(
    "phasewise_event_loop_lag_seconds",
    "gauge",
    (),
    "How late the event loop was at most since the last scrape, by the gateway's own work.",
)
OVERLOAD_STAGE = MetricFamily(
    "phasewise_overload_stage",
    "gauge",
    (),
    "What is given up: 0 nothing, 1 keep-alive, 2 large bodies, 3 keys of the lowest priority, 4 everything.",
)
BODY_BYTES = MetricFamily(
    "phasewise_body_bytes", "gauge", (), "The bodies of open requests, those being read included."
)
LOG_DROPPED = MetricFamily(
    "phasewise_log_lines_dropped_total",
    "counter",
    (),
    "Lines that are missing in the log because nobody read it fast enough.",
)
TRACES_DROPPED = MetricFamily(
    "phasewise_traces_dropped_total",
    "counter",
    ("reason",),
    "Requests whose spans were not sent: the backend does not take them, or there are too many.",
)
QUOTA_DEGRADED = MetricFamily(
    "phasewise_quota_degraded",
    "gauge",
    (),
    "Whether keys' limits are counted by this process alone because the shared store does not answer.",
)

CACHE_REQUESTS = MetricFamily(
    "phasewise_cache_requests_total",
    "counter",
    ("result",),
    "Requests that ended, by their result in the answer cache.",
)
CACHE_LOOK_UP = MetricFamily(
    "phasewise_cache_look_up_seconds",
    "histogram",
    ("result",),
    "Duration of look-ups for a stored answer, by result.",
    LOOK_UP_BOUNDS_S,
)
CACHE_SAVED_S = MetricFamily(
    "phasewise_cache_saved_seconds_total",
    "counter",
    ("phase", "mode"),
    "Seconds saved by serving stored answers, or that shadow mode would have saved.",
)
CACHE_SAVED_TOKENS = MetricFamily(
    "phasewise_cache_saved_tokens_total",
    "counter",
    ("mode",),
    "Output tokens saved by serving stored answers, or that shadow mode would have saved.",
)
CACHE_DEGRADED = MetricFamily(
    "phasewise_cache_degraded",
    "gauge",
    (),
    "Whether a part of the answer cache does not answer, so that requests are served without it.",
)

METRICS = (
    TTFT, TTFT_PART, TPOT, E2E, REQUESTS, TOKENS, RETRIES, RESUMES, KV_TRANSFERS, PLACEMENTS, OBJECTIVES,
    WORKER_UP, WORKER_STILL, WORKER_REQUESTS, WORKER_BREAKER_OPEN, CACHE_REQUESTS, CACHE_LOOK_UP,
    CACHE_SAVED_S, CACHE_SAVED_TOKENS, KV_TRANSFER_RECOMPUTED, KV_TRANSFER_BYTES, KV_TRANSFER_FAILING,
    KV_TRANSFER_PROOF_AGE, WAITING, ENGINES_NEEDED, LOOP_LAG, OVERLOAD_STAGE, BODY_BYTES, LOG_DROPPED,
    TRACES_DROPPED, QUOTA_DEGRADED, CACHE_DEGRADED,
)  # fmt: skip
