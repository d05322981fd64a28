"""The real Prometheus scrapes the gateway, and every query of the dashboard finds data."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import urllib.parse
from math import isnan

import orjson
import pytest
import pytest_asyncio
import yaml
from dockerfile_parse import DockerfileParser

from phasewise.clients.http_client import HttpClient
from phasewise.core.caching import CacheNote, CacheResult
from phasewise.core.errors import UpstreamError
from phasewise.core.kv_transfer import KvTransferOutcome
from phasewise.core.timeline import AttemptKind, Outcome
from phasewise.core.worker import Role
from phasewise.fake_engine.engine import FakeEngineConfig
from phasewise.fake_engine.fleet import running_engines
from phasewise.simulator.kv import Connector
from tests.builders import make_attempt, make_timeline
from tests.deploy.files import DEPLOY, ROOT, filled_in, queries, read_dashboard
from tests.gateway.harness import eventually, running_gateway, worker_for
from tests.real_engine import free_port

# One Prometheus for all of them, in one event loop.
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("prometheus")]

PATIENCE_S = 60.0
SCRAPE_INTERVAL = "1s"
CERTIFICATE = str(ROOT / "tests" / "clients" / "localhost-for-tests-only.pem")


def tool(name):
    """The path of a program of Debian's package `prometheus`; CI has it, other machines may not."""
    path = shutil.which(name)
    if path is None and os.environ.get("CI"):
        pytest.fail(f"{name} is missing: apt-get install prometheus")
    if path is None:
        pytest.skip(f"{name} is missing: apt-get install prometheus")
    return path


def promtool(*arguments, stdin=None):
    return subprocess.run(
        [tool("promtool"), *arguments], input=stdin, capture_output=True, timeout=500, check=False
    )


class RunningPrometheus:
    """A Prometheus under test and the few questions asked of it."""

    def __init__(self, url):
        self._client = HttpClient(url)

    async def ready(self):
        with contextlib.suppress(UpstreamError):
            return (await self._client.fetch("GET", "/-/ready")).status == 200

    async def ask(self, path, **parameters):
        reply = await self._client.fetch("GET", f"{path}?{urllib.parse.urlencode(parameters)}")
        answer = orjson.loads(reply.body)
        assert answer["status"] == "success", answer.get("error")
        return answer["data"]

    async def query(self, expression):
        """The query's results as (labels, number)."""
        found = (await self.ask("/api/v1/query", query=expression))["result"]
        return [(it["metric"], float(it["value"][1])) for it in found]

    def close(self):
        self._client.close()


@contextlib.asynccontextmanager
async def running_prometheus(folder, gateway_url):
    """Prometheus as compose.yaml starts it, but for where things are and how often it asks."""
    program, port = tool("prometheus"), free_port()
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["prometheus"]
    options = [
        option.replace("=/etc/prometheus", f"={folder}").replace("=/prometheus", f"={folder}/data")
        for option in compose["command"]
    ]
    config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": SCRAPE_INTERVAL, "scrape_timeout": SCRAPE_INTERVAL}
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [gateway_url.removeprefix("http://")]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    shutil.copy(DEPLOY / "alerts.yml", folder)
    with (folder / "prometheus.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            program,
            *options,
            f"--web.listen-address=127.0.0.1:{port}",
            stdout=log,
            stderr=log,
        )
    prometheus = RunningPrometheus(f"http://127.0.0.1:{port}")
    try:
        await eventually(prometheus.ready, PATIENCE_S)
        yield prometheus
    finally:
        prometheus.close()
        process.terminate()
        await asyncio.wait_for(process.wait(), 60)


async def send_traffic(gateway, engines):
    """Streams and plain replies, a failed first attempt, a rejection, and a stream that went on elsewhere."""
    for number in range(6):
        await gateway.chat(f"question {number} " * 40, stream=number % 3 > 0)
    engines[0].inject("error", times=1)
    engines[1].inject("error", times=1)
    await gateway.chat("once more", stream=True)
    await gateway.chat("nobody has it", model="not-served")
    await gateway.chat("a prompt to be computed elsewhere " * 40, model="disaggregated-model")
    broke, went_on = make_attempt(outcome=Outcome.FAILED), make_attempt(kind=AttemptKind.RESUMED)
    metrics = gateway.app.gateway.metrics
    metrics.record(make_timeline(model="fake-model", attempts=(broke, went_on)))
    both_sides = [make_attempt(kind=kind) for kind in (AttemptKind.PREFILL_SIDE, AttemptKind.DECODE_SIDE)]
    metrics.record(make_timeline(model="fake-model", attempts=tuple(both_sides)))
    metrics.count_kv_transfer(KvTransferOutcome.DONE)
    spared = CacheNote(CacheResult.HIT_EXACT, look_up_s=0.001, saved_start_s=0.5, saved_tokens=40)
    metrics.record(make_timeline(model="fake-model", cache=spared))


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def watched(tmp_path_factory):
    """A gateway with traffic behind it, seen by Prometheus at least twice while numbers grew."""
    disaggregated = FakeEngineConfig(model="disaggregated-model", kv_transfer=Connector())
    async with (
        running_engines(2) as engines,
        running_engines(2, disaggregated) as (prefill, decode),
        running_gateway(
            [
                *engines,
                worker_for(prefill, "prefill", role=Role.PREFILL),
                worker_for(decode, "decode", role=Role.DECODE),
            ],
            kv_transfer={"when": "always"},
        ) as gateway,
        running_prometheus(tmp_path_factory.mktemp("prometheus"), gateway.url) as prometheus,
    ):
        await send_traffic(gateway, engines)

        async def grew():
            # More traffic every time: a rate needs numbers that changed between two scrapes.
            await send_traffic(gateway, engines)
            changed = await prometheus.query("sum(changes(phasewise_resumes_total[5m])) > 1")
            proven = await prometheus.query("phasewise_kv_transfer_proof_age_seconds")
            return bool(changed and proven)

        await eventually(grew, PATIENCE_S)
        yield gateway, prometheus


async def test_every_query_of_the_dashboard_finds_data(watched):
    _, prometheus = watched
    for panel, letter, expression in queries():
        found = await prometheus.query(filled_in(expression, "5m"))
        assert found, f"{panel}, {letter}: no data"
        assert not any(isnan(number) for _, number in found), f"{panel}, {letter}: not a number"


async def test_the_parts_prometheus_stacks_add_up_to_mean_ttft(watched):
    _, prometheus = watched
    expression = next(it for panel, _, it in queries() if "made of" in panel)
    parts = await prometheus.query(filled_in(expression, "5m"))
    selector = 'rate(phasewise_ttft_seconds_{}{{model=~".*"}}[5m])'
    mean = f"sum({selector.format('sum')}) / sum({selector.format('count')})"
    assert {"gateway_wait", "prefill", "unexplained"} <= {labels["part"] for labels, _ in parts}
    ((_, mean_s),) = await prometheus.query(mean)
    # The two queries may fall on either side of a scrape.
    assert sum(seconds for _, seconds in parts) == pytest.approx(mean_s, rel=0.2)


async def test_the_dashboards_choices_are_the_configurations_models_and_pools(watched):
    _, prometheus = watched
    offered = {}
    for variable in read_dashboard()["templating"]["list"]:
        metric, label = variable["definition"].removeprefix("label_values(").rstrip(")").split(", ")
        offered[variable["name"]] = await prometheus.ask(
            f"/api/v1/label/{label}/values", **{"match[]": metric}
        )
    assert offered == {"model": ["disaggregated-model", "fake-model", "none"], "pool": ["default"]}


async def test_every_rule_of_the_alerts_is_evaluated(watched):
    _, prometheus = watched

    async def evaluated():
        groups = (await prometheus.ask("/api/v1/rules"))["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        return rules if all(rule["health"] == "ok" for rule in rules) else None

    assert len(await eventually(evaluated, PATIENCE_S)) == 28


async def test_promtool_accepts_the_gateways_metrics(watched):
    gateway, _ = watched
    reported = await gateway.fetch("GET", "/metrics")
    checked = promtool("check", "metrics", stdin=reported.body)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


async def test_promtool_finds_no_fault_with_the_configuration():
    checked = promtool("check", "config", str(DEPLOY / "prometheus.yml"))
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("tls", [None, {"certificate": CERTIFICATE, "key": CERTIFICATE}])
async def test_the_images_health_check_distinguishes_a_gateway_with_workers_from_one_without(tls):
    steps = {it["instruction"]: it["value"] for it in DockerfileParser(path=str(DEPLOY)).structure}
    _python, option, code = json.loads(steps["HEALTHCHECK"].partition("CMD")[2])
    async with running_engines(1) as engines, running_gateway(engines, tls=tls) as gateway:
        url = gateway.url if tls is None else gateway.url.replace("http:", "https:")

        async def exit_code():
            checking = await asyncio.create_subprocess_exec(
                sys.executable,
                option,
                code,
                env={**os.environ, "PHASEWISE_HEALTH_URL": f"{url}/health"},
                stderr=asyncio.subprocess.DEVNULL,
            )
            return await asyncio.wait_for(checking.wait(), 60)

        assert await exit_code() == 0
        await engines[0].stop()
        await eventually(lambda: gateway.app.gateway.cluster.usable("fake-model") == ())
        assert await exit_code() == 1
