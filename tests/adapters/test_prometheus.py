"""Phases become histograms, labels stay bounded, and every metric is documented."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from phasewise.adapters.prometheus import METRICS, SECONDS_BOUNDS, PrometheusMetrics
from phasewise.errors import RefusalKind
from phasewise.model.timeline import Outcome, Part
from phasewise.state.cluster_view import ClusterView
from phasewise.state.load_ledger import LoadLedger
from tests.builders import make_attempt, make_span, make_timeline, make_worker

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"


def make_metrics():
    worker = make_worker(pool="gold")
    cluster, ledger = ClusterView([worker]), LoadLedger()
    return PrometheusMetrics(cluster, ledger), cluster, ledger


def samples(metrics):
    families = text_string_to_metric_families(metrics.text().decode())
    return {
        (sample.name, *(f"{name}={value}" for name, value in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def test_ttft_and_its_parts_add_up():
    metrics, _, _ = make_metrics()
    wait = make_span(Part.GATEWAY_WAIT, 0.1)
    engine = [make_span(Part.ENGINE_QUEUE, 0.05), make_span(Part.PREFILL, 0.25), make_span(Part.DECODE, 9.0)]
    metrics.record(make_timeline((0.5, 0.6, 0.7), spans=[wait], engine_spans=engine))
    seen = samples(metrics)
    parts = {key[2]: value for key, value in seen.items() if key[0] == "phasewise_ttft_part_seconds_sum"}
    assert parts == pytest.approx(
        {"part=gateway_wait": 0.1, "part=engine_queue": 0.05, "part=prefill": 0.25, "part=residual": 0.1}
    )
    assert sum(parts.values()) == pytest.approx(seen["phasewise_ttft_seconds_sum", "model=m", "pool=gold"])
    assert seen["phasewise_tpot_seconds_sum", "model=m", "pool=gold"] == pytest.approx(0.1)


def test_buckets_are_cumulative_and_a_bound_belongs_to_its_bucket():
    metrics, _, _ = make_metrics()
    for ttft_s in (0.5, 0.6, 1000.0):
        metrics.record(make_timeline((ttft_s,)))
    seen = samples(metrics)

    def bucket(le):
        return seen["phasewise_ttft_seconds_bucket", f"le={le}", "model=m", "pool=gold"]

    assert [bucket("0.25"), bucket("0.5"), bucket("1.0"), bucket("300.0"), bucket("+Inf")] == [0, 1, 2, 2, 3]
    assert list(SECONDS_BOUNDS) == sorted(SECONDS_BOUNDS)


def test_requests_are_counted_by_how_they_ended_and_tokens_by_kind():
    metrics, _, _ = make_metrics()
    metrics.record(make_timeline(cached_tokens=40))
    failed = [make_attempt(outcome=Outcome.FAILED), make_attempt()]
    metrics.record(make_timeline((), outcome=Outcome.FAILED, reason="closed", attempts=tuple(failed)))
    metrics.count_refusal(RefusalKind.BAD_REQUEST)
    seen = samples(metrics)
    assert seen["phasewise_requests_total", "model=m", "outcome=succeeded", "reason=none"] == 1
    assert seen["phasewise_requests_total", "model=m", "outcome=failed", "reason=closed"] == 1
    assert seen["phasewise_requests_total", "model=none", "outcome=rejected", "reason=bad_request"] == 1
    assert seen["phasewise_tokens_total", "kind=cached", "model=m"] == 40
    assert seen["phasewise_retries_total", "model=m"] == 1


def test_a_model_nobody_serves_is_no_label():
    metrics, _, _ = make_metrics()
    metrics.record(make_timeline((), model="made-up-by-a-client", attempts=(), outcome=Outcome.REJECTED))
    assert b"made-up" not in metrics.text()


def test_workers_show_their_health_and_load():
    metrics, cluster, ledger = make_metrics()
    assert samples(metrics)["phasewise_worker_up", "pool=gold", "worker=w0"] == 0
    cluster.mark_up("w0", "1")
    ledger.book(cluster.snapshot()[0].worker.ref, 10)
    seen = samples(metrics)
    assert seen["phasewise_worker_up", "pool=gold", "worker=w0"] == 1
    assert seen["phasewise_worker_requests", "pool=gold", "worker=w0"] == 1


def test_every_metric_is_told_and_documented_with_its_labels():
    metrics, _, _ = make_metrics()
    text = metrics.text().decode()
    for metric in METRICS:
        assert f"# TYPE {metric.name} {metric.kind}" in text
    rows = re.findall(r"^\| `(phasewise_\w+)` \| (\w+) \| ([^|]*) \|", PAGE.read_text(), re.MULTILINE)
    documented = {name: (kind, tuple(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    assert documented == {metric.name: (metric.kind, metric.labels) for metric in METRICS}
