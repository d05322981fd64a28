"""Phases become histograms, labels stay bounded, and every metric is documented."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from itertools import product
from math import prod

import pytest
from hypothesis import given
from prometheus_client.parser import text_string_to_metric_families

from phasewise.core.caching import CacheNote, CacheResult
from phasewise.core.decision import Option, Terms
from phasewise.core.errors import RejectionKind
from phasewise.core.kv_transfer import KvTransferState
from phasewise.core.latency import meets
from phasewise.core.slo import DEFAULT_SLO, Slo
from phasewise.core.timeline import TTFT_PARTS, AttemptKind, Outcome, Part, Placement
from phasewise.core.trace_context import TraceLoss
from phasewise.core.worker import WorkerRef
from phasewise.gateway.records.metric_families import METRICS, NO_LABEL, REASONS
from phasewise.gateway.records.metrics import OwnState, PrometheusMetrics
from phasewise.scheduling.ledger import LoadLedger
from phasewise.scheduling.world import ClusterView
from tests.builders import make_attempt, make_span, make_timeline, make_worker
from tests.paths import ROOT
from tests.strategies import timelines

PAGE = ROOT / "docs" / "reference" / "metrics.md"
GATEWAY = ROOT / "src" / "phasewise" / "gateway"
PHASE = ("model=m", "outcome=succeeded", "pool=gold")


def make_metrics(**sources):
    worker = make_worker(pool="gold")
    cluster, ledger = ClusterView([worker]), LoadLedger()
    return PrometheusMetrics(cluster, ledger, **sources), cluster, ledger


def samples(metrics):
    families = text_string_to_metric_families(metrics.text().decode())
    return {
        (sample.name, *(f"{name}={value}" for name, value in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


# --- phases ---------------------------------------------------------------------------------------------


def test_ttft_and_its_parts_add_up():
    metrics, _, _ = make_metrics()
    wait = make_span(Part.GATEWAY_WAIT, 0.1)
    engine = [make_span(Part.ENGINE_QUEUE, 0.05), make_span(Part.PREFILL, 0.25), make_span(Part.DECODE, 9.0)]
    metrics.record(make_timeline((0.5, 0.6, 0.7), spans=[wait], engine_spans=engine))
    seen = samples(metrics)
    parts = {key[3]: value for key, value in seen.items() if key[0] == "phasewise_ttft_part_seconds_sum"}
    assert parts == pytest.approx(
        {"part=gateway_wait": 0.1, "part=engine_queue": 0.05, "part=prefill": 0.25, "part=unexplained": 0.1}
    )
    assert sum(parts.values()) == pytest.approx(seen["phasewise_ttft_seconds_sum", *PHASE])
    assert seen["phasewise_tpot_seconds_sum", *PHASE] == pytest.approx(0.1)
    assert seen["phasewise_e2e_seconds_sum", *PHASE] == pytest.approx(0.7)


def test_phases_are_labelled_by_how_the_request_ended():
    metrics, _, _ = make_metrics()
    metrics.record(make_timeline((0.5, 0.6)))
    metrics.record(make_timeline((0.2,), outcome=Outcome.CANCELLED, reason="client_left"))
    seen = samples(metrics)
    left = ("model=m", "outcome=cancelled", "pool=gold")
    assert seen["phasewise_ttft_seconds_sum", *left] == pytest.approx(0.2)
    assert seen["phasewise_ttft_seconds_count", *PHASE] == 1
    assert ("phasewise_e2e_seconds_count", *left) not in seen, "what was not answered has no end to end"


def test_buckets_are_cumulative_and_a_bound_belongs_to_its_bucket():
    metrics, _, _ = make_metrics()
    for ttft_s in (0.5, 0.6, 1000.0):
        metrics.record(make_timeline((ttft_s,)))
    seen = samples(metrics)

    def bucket(le):
        return seen["phasewise_ttft_seconds_bucket", f"le={le}", *PHASE]

    assert [bucket("0.3"), bucket("0.5"), bucket("0.75"), bucket("120.0"), bucket("+Inf")] == [0, 1, 2, 2, 3]


def test_bounds_grow_and_hold_the_default_objectives():
    """Goodput is read off a bucket: there has to be one that ends at the objective."""
    bounds = {metric.name: metric.bounds for metric in METRICS if metric.kind == "histogram"}
    assert all(list(each) == sorted(set(each)) and each for each in bounds.values())
    assert DEFAULT_SLO.ttft_s in bounds["phasewise_ttft_seconds"]
    assert DEFAULT_SLO.tpot_s in bounds["phasewise_tpot_seconds"]


# --- counters and gauges --------------------------------------------------------------------------------


def test_requests_are_counted_by_how_they_ended_and_tokens_by_kind():
    metrics, _, _ = make_metrics()
    metrics.record(make_timeline(cached_tokens=40))
    failed = [make_attempt(outcome=Outcome.FAILED), make_attempt()]
    metrics.record(make_timeline((), outcome=Outcome.FAILED, reason="not_resumable", attempts=tuple(failed)))
    metrics.count_rejection(RejectionKind.BAD_REQUEST)
    seen = samples(metrics)
    assert seen["phasewise_requests_total", "model=m", "outcome=succeeded", "reason=none"] == 1
    assert seen["phasewise_requests_total", "model=m", "outcome=failed", "reason=not_resumable"] == 1
    assert seen["phasewise_requests_total", "model=none", "outcome=rejected", "reason=bad_request"] == 1
    assert seen["phasewise_tokens_total", "kind=cached", "model=m"] == 40
    assert seen["phasewise_retries_total", "model=m"] == 1


def test_tokens_that_were_not_counted_are_not_exported_as_0_and_retries_begin_at_none():
    metrics, _, _ = make_metrics()
    metrics.record(make_timeline(prompt_tokens=5, cached_tokens=None, output_tokens=0))
    seen = samples(metrics)
    assert ("phasewise_tokens_total", "kind=cached", "model=m") not in seen
    assert seen["phasewise_tokens_total", "kind=output", "model=m"] == 0
    assert seen["phasewise_retries_total", "model=m"] == 0


def test_both_sides_of_a_kv_transfer_are_one_try_of_the_decode_workers_pool():
    metrics, _, _ = make_metrics()
    read = make_attempt([make_span(Part.PREFILL, 0.3)], kind=AttemptKind.PREFILL_SIDE, worker="elsewhere")
    wrote = make_attempt([make_span(Part.KV_TRANSFER, 0.1)], kind=AttemptKind.DECODE_SIDE)
    metrics.record(make_timeline((0.5, 0.6), attempts=(read, wrote)))
    rejected = make_attempt(kind=AttemptKind.DECODE_SIDE, outcome=Outcome.FAILED)
    metrics.record(make_timeline((0.5, 0.6), attempts=(read, rejected, make_attempt())))
    seen = samples(metrics)
    assert seen["phasewise_retries_total", "model=m"] == 1
    assert seen["phasewise_ttft_seconds_count", *PHASE] == 2
    parts = {
        name: seen["phasewise_ttft_part_seconds_sum", *PHASE[:2], f"part={name}", PHASE[2]]
        for name in ("prefill", "kv_transfer")
    }
    assert parts == pytest.approx({"prefill": 0.3, "kv_transfer": 0.1})


def test_going_on_with_a_broken_answer_is_no_retry():
    metrics, _, _ = make_metrics()
    broke = make_attempt(outcome=Outcome.FAILED)
    resumed = make_attempt(kind=AttemptKind.RESUMED)
    resumed_in_vain = make_attempt(kind=AttemptKind.RESUMED, outcome=Outcome.TIMED_OUT)
    metrics.record(make_timeline(attempts=(broke, broke, resumed)))
    metrics.record(make_timeline(attempts=(broke, resumed_in_vain), outcome=Outcome.FAILED))
    seen = samples(metrics)
    assert seen["phasewise_resumes_total", "model=m", "outcome=succeeded"] == 1
    assert seen["phasewise_resumes_total", "model=m", "outcome=timed_out"] == 1
    assert seen["phasewise_retries_total", "model=m"] == 1


def test_requests_are_held_to_the_objectives_of_their_class():
    metrics, _, _ = make_metrics(slos={"chat": Slo(ttft_s=0.4, tpot_s=0.2)})
    metrics.record(make_timeline((0.5, 0.6), slo_class="chat"))
    metrics.record(make_timeline((0.3, 0.4), slo_class="chat"))
    metrics.record(make_timeline((0.5, 0.6), slo_class="not configured"))
    metrics.record(make_timeline((), outcome=Outcome.FAILED))
    kept = {key[2:]: value for key, value in samples(metrics).items() if "_slo_requests" in key[0]}
    assert kept == {
        ("result=met", "slo_class=chat"): 1,
        ("result=missed", "slo_class=chat"): 1,
        ("result=met", "slo_class=default"): 1,
        ("result=missed", "slo_class=default"): 1,
    }


@given(timelines)
def test_goodput_is_the_definitions(timeline):
    metrics, _, _ = make_metrics()
    metrics.record(timeline)
    model = "model=m" if timeline.model == "m" else "model=none"
    seen = samples(metrics)
    met = seen["phasewise_slo_requests_total", model, "result=met", "slo_class=default"]
    assert met == meets(timeline, DEFAULT_SLO)


@pytest.mark.parametrize(
    ("reason", "counted"),
    [
        ("requests_over_limit", 0),
        ("tokens_over_limit", 0),
        ("concurrency_over_limit", 0),
        ("no_worker_for_model", 0),
        ("engine_4xx", 0),
        ("queue_full", 1),
        ("queue_timeout", 1),
        ("no_healthy_worker", 1),
        ("limits_unavailable", 1),
        ("gateway_full", 1),
    ],
)
def test_goodput_is_not_lowered_by_clients_mistakes(reason, counted):
    metrics, _, _ = make_metrics()
    metrics.record(make_timeline((), outcome=Outcome.REJECTED, reason=reason, attempts=()))
    seen = samples(metrics)
    missed = seen["phasewise_slo_requests_total", "model=m", "result=missed", "slo_class=default"]
    assert missed == counted


def test_workers_show_their_health_load_and_breaker():
    metrics, cluster, ledger = make_metrics(breaker_open=lambda worker: worker.name == "w0")
    assert samples(metrics)["phasewise_worker_up", "pool=gold", "worker=w0"] == 0
    cluster.mark_up("w0", "1")
    ledger.book(cluster.snapshot()[0].worker.ref, 10)
    seen = samples(metrics)
    assert seen["phasewise_worker_up", "pool=gold", "worker=w0"] == 1
    assert seen["phasewise_worker_requests", "pool=gold", "worker=w0"] == 1
    assert seen["phasewise_worker_breaker_open", "pool=gold", "worker=w0"] == 1


def test_what_others_own_is_asked_at_each_scrape():
    own = [OwnState(waiting={"m": 0})]
    metrics, _, _ = make_metrics(own=lambda: own[0])
    before = samples(metrics)
    own[0] = OwnState(waiting={"m": 7}, quota_degraded=True)
    after = samples(metrics)
    assert [it["phasewise_waiting_requests", "model=m"] for it in (before, after)] == [0, 7]
    assert [before["phasewise_quota_degraded",], after["phasewise_quota_degraded",]] == [0, 1]


# --- labels ---------------------------------------------------------------------------------------------


def test_a_model_nobody_serves_is_no_label():
    metrics, _, _ = make_metrics()
    metrics.record(make_timeline((), model="made-up-by-a-client", attempts=(), outcome=Outcome.REJECTED))
    assert b"made-up" not in metrics.text()


def test_a_reason_nobody_listed_is_no_label():
    metrics, _, _ = make_metrics()
    metrics.record(make_timeline((), outcome=Outcome.FAILED, reason="text from somewhere"))
    assert samples(metrics)["phasewise_requests_total", "model=m", "outcome=failed", "reason=other"] == 1


def test_a_name_with_quotes_and_line_ends_stays_one_label():
    name = 'w"0\\\n'
    cluster = ClusterView([make_worker(name, pool="gold")])
    assert ("phasewise_worker_up", "pool=gold", f"worker={name}") in samples(
        PrometheusMetrics(cluster, LoadLedger())
    )


@given(timelines)
def test_labels_are_the_configurations_or_of_closed_lists_whatever_was_recorded(timeline):
    metrics, _, _ = make_metrics()
    metrics.record(timeline)
    accepted = {
        "model": {"m", "none"},
        "pool": {"gold", "none"},
        "worker": {"w0"},
        "outcome": set(Outcome),
        "reason": {*REASONS, "none", "other", *TraceLoss},
        "part": {*TTFT_PARTS, "unexplained"},
        "kind": {"prompt", "cached", "output"},
        "slo_class": {"default"},
        "result": {"met", "missed", *CacheResult},
        "phase": {"start", "stream"},
        "mode": {"served", "shadow"},
        "way": {"split", "whole"},
    }
    for _name, *labels in samples(metrics):
        for name, _, value in (label.partition("=") for label in labels):
            assert name == "le" or value in accepted[name]


@given(timelines)
def test_nothing_that_is_counted_ever_shrinks(timeline):
    metrics, _, _ = make_metrics()
    metrics.record(timeline)
    before = samples(metrics)
    metrics.record(timeline)
    after = samples(metrics)
    assert all(0 <= value <= after[key] for key, value in before.items())


def test_series_stay_within_their_bound_when_everything_happens_that_can():
    metrics, _, _ = make_metrics()
    spans = [make_span(part, 0.01) for part in TTFT_PARTS]
    models = ("m", *(f"made-up-{number}" for number in range(300)))
    for model, outcome, worker in product(models, Outcome, ("w0", "a worker of another life")):
        attempts = (
            make_attempt(outcome=Outcome.FAILED),
            make_attempt(kind=AttemptKind.RESUMED, worker=worker),
        )
        for reason in REASONS if model == "m" else (None, "closed", f"{model} was not found"):
            metrics.record(
                make_timeline(spans=spans, model=model, outcome=outcome, reason=reason, attempts=attempts)
            )
    for result in CacheResult:
        metrics.record(make_timeline(cache=CacheNote(result, look_up_s=0.1, saved_start_s=1.0)))
    for kind in RejectionKind:
        metrics.count_rejection(kind)
    values = {
        "model": 2,
        "pool": 2,
        "worker": 1,
        "outcome": len(Outcome),
        "reason": len(set(REASONS)) + 2,
        "part": len(TTFT_PARTS) + 1,
        "kind": 3,
        "slo_class": 1,
        "result": len(CacheResult),
        "phase": 2,
        "mode": 2,
        "way": 2,
    }
    most = sum(
        # A histogram has a line for each bucket, its sum and its count.
        (len(family.bounds) + 3 if family.kind == "histogram" else 1)
        * prod(values[label] for label in family.labels)
        for family in METRICS
    )
    assert most / 4 < len(samples(metrics)) <= most


def test_every_ending_of_the_gateway_has_a_label_of_its_own():
    """A reason written as text in `Ending(outcome, reason)` would be counted as other unless listed."""
    literal = {
        reason
        for path in GATEWAY.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Ending"
        for reason in _text_of(
            call.args[1:2],
            ".".join(("phasewise", "gateway", *path.relative_to(GATEWAY).with_suffix("").parts)),
        )
    }
    assert "client_left" in literal
    assert literal <= set(REASONS)


def _text_of(arguments, module):
    for argument in arguments:
        if isinstance(argument, ast.Constant):
            yield argument.value
        if isinstance(argument, ast.Name) and argument.id.isupper():
            yield getattr(import_module(module), argument.id)


# --- the page -------------------------------------------------------------------------------------------


def test_every_metric_is_exported_and_documented_with_its_labels():
    metrics, _, _ = make_metrics()
    text = metrics.text().decode()
    for metric in METRICS:
        assert f"# TYPE {metric.name} {metric.kind}" in text
    rows = re.findall(r"^\| `(phasewise_\w+)` \| (\w+) \| ([^|]*) \|", PAGE.read_text(), re.MULTILINE)
    documented = {name: (kind, tuple(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    assert documented == {metric.name: (metric.kind, metric.labels) for metric in METRICS}


def test_every_reason_is_documented_and_no_other():
    table = PAGE.read_text().partition("| outcome | reason |")[2]
    rows = re.findall(r"^\| `\w+` \| ([^|]*) \|", table, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", "".join(rows))) == {*REASONS, NO_LABEL}


def test_the_state_of_kv_transfers_is_exported_per_decode_worker():
    states = [KvTransferState("d0", 1_500, 35_000_000, 12.4, 1), KvTransferState("d1", 0, 0, None, 0)]
    metrics, _, _ = make_metrics(kv_transfers=lambda: states)
    seen = samples(metrics)
    assert seen["phasewise_kv_transfer_recomputed_tokens_total", "worker=d0"] == 1_500
    assert seen["phasewise_kv_transfer_bytes_total", "worker=d0"] == 35_000_000
    assert seen["phasewise_kv_transfer_failing_pairs", "worker=d0"] == 1
    assert seen["phasewise_kv_transfer_proof_age_seconds", "worker=d0"] == 12
    assert ("phasewise_kv_transfer_proof_age_seconds", "worker=d1") not in seen
    states[0] = KvTransferState("d0", 1_500, 1_000, 1.0, 0)  # its engine was restarted
    assert samples(metrics)["phasewise_kv_transfer_bytes_total", "worker=d0"] == 1_000


def test_requests_are_counted_by_the_way_they_went_where_there_was_a_choice():
    metrics, _, _ = make_metrics()
    sides = (make_attempt(kind=AttemptKind.PREFILL_SIDE), make_attempt(kind=AttemptKind.DECODE_SIDE))
    one, other = WorkerRef("d0", "1"), WorkerRef("p0", "1")
    whole, split = Option(one, None, Terms(), 500), Option(one, other, Terms(), 500)
    metrics.record(make_timeline(attempts=sides))  # by a rule that weighs nothing
    metrics.record(make_timeline(placement=Placement("auto", "cheaper", (split, whole)), attempts=sides))
    metrics.record(make_timeline(placement=Placement("auto", "cheaper", (whole, split))))
    metrics.record(make_timeline(placement=Placement("auto", "nothing else was possible", (whole, whole))))
    metrics.record(make_timeline())
    seen = samples(metrics)
    assert seen["phasewise_placements_total", "way=split"] == 2
    assert seen["phasewise_placements_total", "way=whole"] == 1


# --- the answer cache -------------------------------------------------------------------------------------


def test_a_hit_is_counted_as_any_request_but_for_the_tokens_that_no_engine_computed():
    metrics, _, _ = make_metrics()
    note = CacheNote(
        CacheResult.HIT_EXACT, look_up_s=0.002, saved_start_s=0.5, saved_stream_s=2.0, saved_tokens=40
    )
    for _ in range(2):
        metrics.record(make_timeline((0.003,), attempts=(), cache=note, output_tokens=40))
    seen = samples(metrics)
    assert seen["phasewise_requests_total", "model=m", "outcome=succeeded", "reason=none"] == 2
    assert seen["phasewise_ttft_seconds_count", "model=m", "outcome=succeeded", "pool=none"] == 2
    assert seen["phasewise_e2e_seconds_count", "model=m", "outcome=succeeded", "pool=none"] == 2
    assert ("phasewise_tokens_total", "kind=output", "model=m") not in seen
    assert seen["phasewise_cache_requests_total", "result=hit_exact"] == 2
    assert seen["phasewise_cache_saved_seconds_total", "mode=served", "phase=start"] == 1.0
    assert seen["phasewise_cache_saved_seconds_total", "mode=served", "phase=stream"] == 4.0
    assert seen["phasewise_cache_saved_tokens_total", "mode=served"] == 80
    assert seen["phasewise_cache_look_up_seconds_count", "result=hit_exact"] == 2
    assert seen["phasewise_cache_look_up_seconds_sum", "result=hit_exact"] == pytest.approx(0.004)


def test_shadow_mode_counts_what_it_would_have_spared_apart():
    metrics, _, _ = make_metrics()
    note = CacheNote(CacheResult.SHADOW_SEMANTIC, saved_start_s=0.5, saved_stream_s=2.0, saved_tokens=40)
    metrics.record(make_timeline(cache=note))
    seen = samples(metrics)
    assert seen["phasewise_cache_saved_tokens_total", "mode=shadow"] == 40
    assert seen["phasewise_tokens_total", "kind=output", "model=m"] == 3
    assert not [key for key in seen if "mode=served" in key]


def test_a_miss_and_a_bypass_spare_nothing():
    metrics, _, _ = make_metrics()
    for note in (CacheNote(CacheResult.MISS, look_up_s=0.1), CacheNote(CacheResult.BYPASS, "tools")):
        metrics.record(make_timeline(cache=note))
    seen = samples(metrics)
    assert seen["phasewise_cache_requests_total", "result=bypass"] == 1
    assert not [key for key in seen if "saved" in key[0]]
    assert ("phasewise_cache_look_up_seconds_count", "result=bypass") not in seen


def test_within_a_second_every_scrape_gets_the_same_text(monkeypatch):
    now_s = 100.0
    monkeypatch.setattr("phasewise.gateway.records.metrics.monotonic", lambda: now_s)
    metrics = PrometheusMetrics(ClusterView([make_worker()]), LoadLedger(), kept_s=1.0)
    first = metrics.text()
    metrics.count_rejection(RejectionKind.NOT_FOUND)
    now_s = 100.9
    assert metrics.text() == first
    now_s = 101.0
    assert b'reason="not_found"' in metrics.text()
