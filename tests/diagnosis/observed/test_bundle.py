"""Evidence that is kept in a file gives the same verdict again, and holds no text."""

import asyncio
import gzip
from dataclasses import replace
from math import nan

import orjson
import pytest

from phasewise.clients.processes import CpuSource, CpuUse
from phasewise.core.engine_metrics import LoadReading
from phasewise.core.errors import ConfigError
from phasewise.core.slo import Slo
from phasewise.core.steps import EngineStep, FinishedRequest, KvTransfer
from phasewise.diagnosis.diagnose import Known, diagnose
from phasewise.diagnosis.evidence import evidence_of
from phasewise.diagnosis.gather.probe import probe
from phasewise.diagnosis.gather.target import identify
from phasewise.diagnosis.gather.watch import Watch
from phasewise.diagnosis.observed.bundle import BUNDLE_VERSION, MAGIC, bundle_of, read_bundle
from phasewise.diagnosis.observed.observation import EngineSeen, HostCpu, Observed, TargetKind, WatchedEngine
from phasewise.diagnosis.verdict import verdict_record
from phasewise.fake_engine.engine import FakeEngineConfig
from phasewise.fake_engine.fleet import running_engines
from tests.gateway.harness import ADMIN_KEY, running_gateway

SLO = Slo(ttft_s=0.2, tpot_s=0.03)
ENDED = FinishedRequest("r1", "abort", 10, 0, 0, 0.5, nan, nan, 0.7)
STEP = EngineStep(
    7, 100.5, 1, 2, 0.5, prompt_tokens=10, finished=(ENDED,), transfers=(KvTransfer(0.1, 1024),)
)


def make_observed(**changes):
    engine = EngineSeen(
        WatchedEngine("e0", "http://127.0.0.1:1", None, "m"),
        metrics=None,
        steps=(STEP,),
        details=True,
        dropped=3,
        loads=(LoadReading(100.0, 1, 2, 0.5, output_tokens=12.0),),
        round_trip_s=0.001,
        recorded=True,
    )
    fields = {"url": "http://127.0.0.1:1", "kind": TargetKind.ENGINE, "began_unix_s": 100.0}
    return Observed(**(fields | {"ended_unix_s": 120.0, "engines": (engine,)} | changes))


def kept(observed):
    return read_bundle(bundle_of(observed, SLO, "phasewise test"))


def test_every_field_comes_back():
    host = HostCpu(CpuUse(1.0, None, 0.5, 0.25, CpuSource.RUN_QUEUE, 0.9), 50.0)
    observed = make_observed(hosts={"e0": host}, synthetic=True, cut_short=True)
    again, slo = kept(observed)
    assert slo == SLO
    # A phase that was not reached is NaN, which equals nothing.
    assert repr(again) == repr(observed)


async def test_the_verdict_on_a_kept_window_is_the_verdict_on_the_window():
    async with (
        running_engines(2, FakeEngineConfig(steps_port=0)) as engines,
        running_gateway(engines) as gateway,
    ):
        watch = Watch(await identify(gateway.url, ADMIN_KEY), ADMIN_KEY)
        await watch.begin()
        await asyncio.gather(*(gateway.chat(f"the secret word {n}", stream=True) for n in range(8)))
        observed = await watch.end()
        watch.close()
    again, _ = kept(observed)
    live, offline = (verdict_record(diagnose(evidence_of(each), SLO, Known())) for each in (observed, again))
    assert orjson.dumps(offline) == orjson.dumps(live)
    assert live["workload"]["requests"] == 8
    assert b"secret" not in gzip.decompress(bundle_of(observed, SLO, "phasewise test"))


def test_ids_that_clients_chose_are_numbered_and_still_match():
    named = replace(STEP, finished=(replace(ENDED, request_id="chatcmpl-alice@example.com"),))
    engine = replace(make_observed().engines[0], steps=(STEP, named, named))
    observed = make_observed(engines=(engine,))
    assert b"alice" not in gzip.decompress(bundle_of(observed, SLO, "p"))
    (seen,) = kept(observed)[0].engines
    assert [step.finished[0].request_id for step in seen.steps] == ["r1", "r2", "r2"]


def test_a_file_that_was_cut_off_is_called_so():
    content = bundle_of(make_observed(), SLO, "p")
    for cut in (MAGIC, content[:-5], content[:40], content[:60] + b"x" * 20 + content[80:]):
        with pytest.raises(ConfigError, match="cut off or damaged"):
            read_bundle(cut)


async def test_a_probe_of_a_stock_engine_is_judged_again():
    async with running_engines(1, FakeEngineConfig()) as (engine,):
        watch = Watch(await identify(engine.base_url, None, "http://127.0.0.1:1"))
        await watch.begin()
        probed = await probe(engine.base_url, None, None, seed=3, on_scene=lambda title: None)
        observed = await watch.end(probed)
        watch.close()
    again, _ = kept(observed)
    live, offline = (diagnose(evidence_of(each), SLO, Known()) for each in (observed, again))
    # Times of requests are kept to a tenth of a millisecond.
    assert (offline.ruling, offline.summary.outcomes) == (live.ruling, live.summary.outcomes)
    assert offline.summary.start.ttft_p50_s == pytest.approx(live.summary.start.ttft_p50_s, abs=2e-4)
    assert observed.engines[0].metrics is not None


def test_the_same_evidence_is_the_same_file():
    assert bundle_of(make_observed(), SLO, "p") == bundle_of(make_observed(), SLO, "p")


@pytest.mark.parametrize("content", [b"", b"{}", gzip.compress(b"[]", mtime=0)])
def test_another_file_is_named_as_such(content):
    with pytest.raises(ConfigError, match="not an evidence file"):
        read_bundle(content)


def test_a_file_of_another_version_names_who_wrote_it():
    record = orjson.loads(gzip.decompress(bundle_of(make_observed(), SLO, "phasewise 9.9")))
    record["phasewise_evidence"] = BUNDLE_VERSION + 1
    with pytest.raises(ConfigError, match=f"version {BUNDLE_VERSION + 1}") as caught:
        read_bundle(gzip.compress(orjson.dumps(record)))
    assert "phasewise 9.9" in caught.value.hint


@pytest.mark.parametrize("name", ["kind", "engines", "slo", "missed"])
def test_a_damaged_file_is_one_sentence(name):
    record = orjson.loads(gzip.decompress(bundle_of(make_observed(), SLO, "p")))
    record[name] = 5
    with pytest.raises(ConfigError, match="damaged"):
        read_bundle(gzip.compress(orjson.dumps(record)))
