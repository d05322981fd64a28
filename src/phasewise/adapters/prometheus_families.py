"""What the gateway tells Prometheus: every metric with its labels, and the lists of their labels' values.

How requests are counted into them is prometheus.py's matter; docs/reference/metrics.md tells users the same.
"""

from __future__ import annotations

from phasewise.adapters.prometheus_series import Metric
from phasewise.errors import RefusalKind
from phasewise.model.decision import RejectReason

NO_LABEL = "none"
"""The label of a request that reached no pool, that names a model no worker serves, or that ended well."""
OTHER_REASON = "other"
"""The label of a reason that is not among REASONS: text must never make up new series."""
RESIDUAL = "residual"
TOKEN_KINDS = ("prompt", "cached", "output")
MET, MISSED = "met", "missed"
SPLIT, WHOLE = "split", "whole"
START, STREAM = "start", "stream"
SERVED, SHADOW = "served", "shadow"
DEFAULT_CLASS = "default"

REASONS = (
    *RejectReason,
    *RefusalKind,
    "engine_4xx",
    "client_left",
    "client_stalled",
    "gateway_error",
)
"""Everything a timeline or a refusal may give as its reason."""

CLIENTS_OWN = frozenset(
    {
        RejectReason.NO_WORKER_FOR_MODEL,
        RejectReason.REQUESTS_OVER_LIMIT,
        RejectReason.TOKENS_OVER_LIMIT,
        RejectReason.CONCURRENCY_OVER_LIMIT,
        "engine_4xx",
    }
)
"""Requests that end so were never ours to serve in time: one client with a mistake must not lower goodput."""

# Finest where people feel it: a tenth of a second to five until the first token, 5 to 200 ms per token.
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
TTFT = Metric(
    "phasewise_ttft_seconds",
    "histogram",
    _PHASE_LABELS,
    "Head read to first content, of streamed requests that got any.",
    TTFT_BOUNDS_S,
)
TTFT_PART = Metric(
    "phasewise_ttft_part_seconds",
    "histogram",
    (*_PHASE_LABELS, "part"),
    "What time to first token was made of; part residual is what no clock saw (negative ones count as 0).",
    TTFT_BOUNDS_S,
)
TPOT = Metric(
    "phasewise_tpot_seconds",
    "histogram",
    _PHASE_LABELS,
    "Mean time per output token after the first, per streamed request.",
    TPOT_BOUNDS_S,
)
E2E = Metric(
    "phasewise_e2e_seconds",
    "histogram",
    _PHASE_LABELS,
    "Head read to last content of requests that were answered in full, streamed or not.",
    E2E_BOUNDS_S,
)
REQUESTS = Metric(
    "phasewise_requests_total",
    "counter",
    ("model", "outcome", "reason"),
    "Requests that ended, by how they ended and, where it was not well, why.",
)
TOKENS = Metric(
    "phasewise_tokens_total",
    "counter",
    ("model", "kind"),
    "Tokens as the engines counted them: prompt, cached (a part of prompt) and output.",
)
RETRIES = Metric(
    "phasewise_retries_total",
    "counter",
    ("model",),
    "Attempts after a request's first that began the answer anew.",
)
RESUMES = Metric(
    "phasewise_resumes_total",
    "counter",
    ("model", "outcome"),
    "Attempts that went on with an answer which had broken off, by how they ended.",
)
HAND_OVERS = Metric(
    "phasewise_hand_overs_total",
    "counter",
    ("outcome",),
    "Hand-overs of KV from a prefill to a decode worker that were tried, by what became of them.",
)
PLACEMENTS = Metric(
    "phasewise_placements_total",
    "counter",
    ("way",),
    "Requests that were first parted (split), and those for which that was weighed and dearer (whole).",
)
OBJECTIVES = Metric(
    "phasewise_slo_requests_total",
    "counter",
    ("model", "slo_class", "result"),
    "Requests that could be served, by whether they kept the objectives of their class, TTFT and TPOT both.",
)
WORKER_UP = Metric(
    "phasewise_worker_up", "gauge", ("worker", "pool"), "Whether the worker answered when last asked."
)
WORKER_REQUESTS = Metric(
    "phasewise_worker_requests", "gauge", ("worker", "pool"), "Requests under way on the worker."
)
WORKER_BREAKER_OPEN = Metric(
    "phasewise_worker_breaker_open",
    "gauge",
    ("worker", "pool"),
    "Whether the worker is left alone because too many of its requests failed of late.",
)
HAND_OVER_RECOMPUTED = Metric(
    "phasewise_hand_over_recomputed_tokens_total",
    "counter",
    ("worker",),
    "Prompt tokens that a decode worker computed again though their KV had been computed for it elsewhere.",
)
HAND_OVER_BYTES = Metric(
    "phasewise_hand_over_bytes_total",
    "counter",
    ("worker",),
    "Bytes of KV that the decode worker's engine has fetched since it started.",
)
HAND_OVER_FAILING = Metric(
    "phasewise_hand_over_failing_pairs",
    "gauge",
    ("worker",),
    "Prefill workers whose last hand-over trial with the decode worker failed.",
)
HAND_OVER_PROOF_AGE = Metric(
    "phasewise_hand_over_proof_age_seconds",
    "gauge",
    ("worker",),
    "How long ago a request or a canary last proved that KV is handed over to the decode worker.",
)
WAITING = Metric(
    "phasewise_waiting_requests", "gauge", (), "Requests that wait in the gateway for a worker, now."
)
QUOTA_DEGRADED = Metric(
    "phasewise_quota_degraded",
    "gauge",
    (),
    "Whether keys' limits are counted by this process alone because the shared store does not answer.",
)

CACHE_REQUESTS = Metric(
    "phasewise_cache_requests_total",
    "counter",
    ("result",),
    "Requests that ended, by what they had of the answer cache.",
)
CACHE_LOOK_UP = Metric(
    "phasewise_cache_look_up_seconds",
    "histogram",
    ("result",),
    "How long requests looked for a stored answer, by what came of it.",
    LOOK_UP_BOUNDS_S,
)
CACHE_SAVED_S = Metric(
    "phasewise_cache_saved_seconds_total",
    "counter",
    ("phase", "mode"),
    "What stored answers had taken to make: spared by serving them, or what shadow mode would have spared.",
)
CACHE_SAVED_TOKENS = Metric(
    "phasewise_cache_saved_tokens_total",
    "counter",
    ("mode",),
    "Output tokens that were not computed because an answer was there, or in shadow mode need not have been.",
)
CACHE_DEGRADED = Metric(
    "phasewise_cache_degraded",
    "gauge",
    (),
    "Whether a part of the answer cache does not answer, so that requests do without it.",
)

METRICS = (
    TTFT, TTFT_PART, TPOT, E2E, REQUESTS, TOKENS, RETRIES, RESUMES, HAND_OVERS, PLACEMENTS, OBJECTIVES,
    WORKER_UP, WORKER_REQUESTS, WORKER_BREAKER_OPEN,
    CACHE_REQUESTS, CACHE_LOOK_UP, CACHE_SAVED_S, CACHE_SAVED_TOKENS,
    HAND_OVER_RECOMPUTED, HAND_OVER_BYTES, HAND_OVER_FAILING, HAND_OVER_PROOF_AGE, WAITING, QUOTA_DEGRADED,
    CACHE_DEGRADED,
)  # fmt: skip
