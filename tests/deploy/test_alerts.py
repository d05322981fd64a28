"""Every alert fires on planted series and stays silent beside them, by `promtool test rules`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import pytest
import yaml

from phasewise.gateway.records.metric_families import METRICS
from tests.deploy.files import DEPLOY, ROOT
from tests.deploy.test_prometheus_scrapes import promtool
from tests.test_docs import anchors_of

FILE = DEPLOY / "alerts.yml"
RULES = [rule for group in yaml.safe_load(FILE.read_text())["groups"] for rule in group["rules"]]
ALERTS = [rule for rule in RULES if "alert" in rule]
PAGE, TICKET = "page", "ticket"
HOURS = "6h10m"


def grows(per_minute, minutes=400):
    """A counter that grows by so much in every minute."""
    return f"0+{per_minute}x{minutes}"


def ttft(late_of_100, minutes=400):
    """100 requests a minute, of which so many come late."""
    return {
        'phasewise_ttft_seconds_bucket{model="m",le="1.0"}': grows(100 - late_of_100, minutes),
        'phasewise_ttft_seconds_count{model="m"}': grows(100, minutes),
        **objectives(0),
    }


def tpot(slow_of_100):
    return {
        'phasewise_tpot_seconds_bucket{model="m",le="0.1"}': grows(100 - slow_of_100),
        'phasewise_tpot_seconds_count{model="m"}': grows(100),
        **objectives(0),
    }


def objectives(missed, of=100):
    series = 'phasewise_slo_requests_total{{model="m",slo_class="default",result="{}"}}'
    return {series.format("missed"): grows(missed), series.format("met"): grows(of - missed)}


def then(series, before, after):
    """One growth for 6 hours, another from then on."""
    return {series: f"0+{before}x360 {before * 360}+{after}x60"}


def worker(name, values, label="w0"):
    return {f'phasewise_worker_{name}{{worker="{label}",pool="main",instance="g"}}': values}


@dataclass
class Case:
    """Series, and what is to fire then: severity and summary by alert; of the others none may."""

    series: dict[str, str]
    fires: dict[tuple[str, str], str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=lambda: {"model": "m"})
    at: str = HOURS


START, STREAM, MISSED = "PhasewiseSlowToStart", "PhasewiseSlowToStream", "PhasewiseObjectivesMissed"
HUNG, DOWN, NONE_UP = "PhasewiseWorkerHung", "PhasewiseWorkerDown", "PhasewiseNoWorkerUp"
AT_WORKER = {"worker": "w0", "pool": "main", "instance": "g"}

CASES = {
    "ttft within its budget": Case(ttft(1)),
    "ttft burns fast": Case(
        ttft(20),
        {
            (START, PAGE): "m: 20% of first tokens of the last hour came late",
            (START, TICKET): "m: 20% of first tokens of the last 6 hours came late",
        },
    ),
    "ttft burns slowly": Case(
        ttft(10), {(START, TICKET): "m: 10% of first tokens of the last 6 hours came late"}
    ),
    "ttft burned and has recovered": Case(
        {
            'phasewise_ttft_seconds_bucket{model="m",le="1.0"}': "0+50x60 3000+100x60",
            'phasewise_ttft_seconds_count{model="m"}': grows(100, 120),
            **objectives(0),
        },
        at="1h40m",
    ),
    "a few requests say little": Case(
        {name: values.replace("100x", "1x").replace("50x", "0x") for name, values in ttft(50).items()}
        | objectives(0, of=1)
    ),
    "tpot within its budget": Case(tpot(1)),
    "tpot burns fast": Case(
        tpot(20),
        {
            (STREAM, PAGE): "m: 20% of streams of the last hour were slow",
            (STREAM, TICKET): "m: 20% of streams of the last 6 hours were slow",
        },
    ),
    "tpot burns slowly": Case(
        tpot(10), {(STREAM, TICKET): "m: 10% of streams of the last 6 hours were slow"}
    ),
    "no request at all": Case(ttft(0, 0) | objectives(0, of=0)),
    "objectives met": Case(objectives(1)),
    "requests fail": Case(
        objectives(20),
        {
            (MISSED, PAGE): "m: 20% of requests of the last hour failed or were slow",
            (MISSED, TICKET): "m: 20% of requests of the last 6 hours failed or were slow",
        },
    ),
    "objectives missed slowly": Case(
        objectives(10), {(MISSED, TICKET): "m: 10% of requests of the last 6 hours failed or were slow"}
    ),
    "a worker hangs": Case(
        worker("stands_still", "1x20") | worker("up", "0x20") | worker("up", "1x20", "w1"),
        {(HUNG, PAGE): "w0 answers health checks and makes no progress"},
        AT_WORKER,
        "10m",
    ),
    "a worker hung for a moment": Case(
        worker("stands_still", "0x8 1 0x9") | worker("up", "1x20"), labels=AT_WORKER, at="9m"
    ),
    "a worker is down": Case(
        worker("stands_still", "0x20") | worker("up", "0x20") | worker("up", "1x20", "w1"),
        {(DOWN, TICKET): "w0 has not answered health checks for 5 minutes"},
        AT_WORKER,
        "10m",
    ),
    "a worker restarts": Case(
        worker("stands_still", "0x20") | worker("up", "1x5 0x3 1x10") | worker("up", "1x20", "w1"),
        labels=AT_WORKER,
        at="8m",
    ),
    "no worker is up": Case(
        worker("stands_still", "0x20") | worker("up", "1x7 0x9"),
        {(NONE_UP, PAGE): "no worker of pool main is up"},
        {"pool": "main", "instance": "g"},
        "10m",
    ),
    "the gateway is down": Case(
        {'up{job="phasewise",instance="g"}': "1x5 0x9"},
        {
            (
                "PhasewiseGatewayDown",
                PAGE,
            ): "the gateway at g does not answer, so no other alert can fire for it"
        },
        {"job": "phasewise", "instance": "g"},
        "10m",
    ),
    "the gateway is up": Case({'up{job="phasewise",instance="g"}': "1x20"}, at="10m"),
    "kv transfers fail": Case(
        {'phasewise_kv_transfer_failing_pairs{worker="d0"}': "2x20"},
        {("PhasewiseKvTransferFailing", TICKET): "KV transfers to d0 fail from 2 prefill workers"},
        {"worker": "d0"},
        "10m",
    ),
    "a kv transfer failed once": Case(
        {'phasewise_kv_transfer_failing_pairs{worker="d0"}': "0x5 1 0x9"}, at="6m"
    ),
    "kv is computed again": Case(
        {'phasewise_kv_transfer_recomputed_tokens_total{worker="d0"}': "0x10 500x20"},
        {("PhasewiseKvRecomputed", TICKET): "d0 computes prompts again whose KV it was to fetch"},
        {"worker": "d0"},
        "15m",
    ),
    "kv was computed again long ago": Case(
        {'phasewise_kv_transfer_recomputed_tokens_total{worker="d0"}': "500x60"}, at="50m"
    ),
    "the cache is away": Case(
        {'phasewise_cache_degraded{instance="g"}': "0x29 1x30"},
        {("PhasewiseCacheDegraded", TICKET): "the answer cache of g was away for 50% of the last hour"},
        {"instance": "g"},
        "59m",
    ),
    "the cache was away and is back": Case(
        {'phasewise_cache_degraded{instance="g"}': "0x20 1x20 0x40"}, at="50m"
    ),
    "the cache was away for a moment": Case(
        {'phasewise_cache_degraded{instance="g"}': "0x30 1x2 0x30"}, at="33m"
    ),
    "traces are dropped": Case(
        {'phasewise_traces_dropped_total{instance="g",reason="not_exported"}': grows(5, 40)},
        {("PhasewiseTracesDropped", TICKET): "traces of g are dropped: not_exported"},
        {"instance": "g", "reason": "not_exported"},
        "30m",
    ),
    "slow requests beyond the bound are not traced": Case(
        {'phasewise_traces_dropped_total{instance="g",reason="rate_limited"}': grows(5, 40)}, at="30m"
    ),
}


def firing(case, name):
    """What promtool is to find of one alert."""
    runbooks = {
        (rule["alert"], rule["labels"]["severity"]): rule["annotations"]["runbook_url"] for rule in ALERTS
    }
    return [
        {
            "exp_labels": {**case.labels, "severity": severity},
            "exp_annotations": {"summary": summary, "runbook_url": runbooks[name, severity]},
        }
        for (alert, severity), summary in case.fires.items()
        if alert == name
    ]


def test_file(case):
    names = sorted({rule["alert"] for rule in ALERTS})
    checks = [{"eval_time": case.at, "alertname": it, "exp_alerts": firing(case, it)} for it in names]
    series = [{"series": name, "values": values} for name, values in case.series.items()]
    test = {"interval": "1m", "input_series": series, "alert_rule_test": checks}
    return {"rule_files": [str(FILE)], "evaluation_interval": "1m", "tests": [test]}


test_file.__test__ = False


@pytest.mark.parametrize("name", CASES)
def test_alerts_fire_when_they_should_and_only_then(name, tmp_path):
    file = tmp_path / "test.yml"
    file.write_text(yaml.safe_dump(test_file(CASES[name])))
    tried = promtool("test", "rules", str(file))
    assert tried.returncode == 0, (tried.stdout + tried.stderr).decode()


def test_every_alert_is_tried_firing_and_silent():
    rules = {(rule["alert"], rule["labels"]["severity"]) for rule in ALERTS}
    assert rules == {fired for case in CASES.values() for fired in case.fires}
    assert any(not case.fires for case in CASES.values())


def test_promtool_finds_no_fault_with_the_rules():
    checked = promtool("check", "rules", str(FILE))
    assert checked.returncode == 0, (checked.stdout + checked.stderr).decode()


def test_rules_use_metrics_and_buckets_that_exist():
    known = {f"{metric.name}{end}" for metric in METRICS for end in ("", "_bucket", "_count", "_sum")}
    used = {name for rule in RULES for name in re.findall(r"\bphasewise_\w+", rule["expr"])}
    assert used
    assert used <= known
    bounds = {
        metric.name: {str(it) for it in metric.bounds} for metric in METRICS if metric.kind == "histogram"
    }
    chosen = {
        it for rule in RULES for it in re.findall(r'(phasewise_\w+)_bucket{le="([\d.]+)"}', rule["expr"])
    }
    assert len(chosen) == 2
    assert all(bound in bounds[name] for name, bound in chosen)


def test_every_alert_leads_to_its_section_of_the_runbook():
    for rule in ALERTS:
        page, anchor = rule["annotations"]["runbook_url"].split("#")
        assert anchor == rule["alert"].lower()
        assert anchor in anchors_of((ROOT / page).read_text())
