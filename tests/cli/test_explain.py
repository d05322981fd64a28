"""Why one request went where it went can be asked of the gateway that served it."""

import asyncio
import sys
from asyncio.subprocess import PIPE
from io import StringIO

import orjson
import pytest
from rich.console import Console
from typer.testing import CliRunner

from benchmarks.bench_power import PhaseScaled
from phasewise.cli.app import app
from phasewise.core.caching import CacheNote, CacheResult
from phasewise.core.errors import PhasewiseError
from phasewise.core.kv_transfer import SplitRule
from phasewise.core.timeline import Outcome, Part, Source
from phasewise.diagnosis.analysis.request_life import life_of
from phasewise.fake_engine.engine import FakeEngineConfig
from phasewise.fake_engine.fleet import running_engines
from phasewise.fleet.config import WorkerConfig
from phasewise.report.request.text import render
from phasewise.simulator.engine import EngineShape
from phasewise.simulator.requests import PRESETS
from tests.builders import make_attempt, make_span, make_timeline
from tests.gateway.harness import ADMIN_KEY, eventually, request_id_of, running_gateway
from tests.gateway.pairs import LONG_TEXT, running_pair
from tests.report.request.test_page import LLAMA


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("PHASEWISE_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "100")


async def explain(gateway, request_id, *options, admin_key=ADMIN_KEY):
    arguments = ["explain", request_id, "--gateway", gateway.url, "--admin-key", admin_key, *options]
    return await asyncio.to_thread(CliRunner().invoke, app, arguments)


async def asked(pair, text):
    reply = await pair.gateway.chat(text, stream=True)
    request_id = request_id_of(reply)
    await pair.gateway.timeline(request_id)
    return request_id


async def test_the_ways_that_a_request_had_stand_beside_what_it_took():
    async with running_pair(kv_transfer={"when": SplitRule.AUTO}) as pair:
        for _ in range(3):
            request_id = await asked(pair, LONG_TEXT)
        reported = await explain(pair.gateway, request_id)
        assert reported.exit_code == 0, reported.output
        for expected in (
            "Options, in seconds",
            "p0 > d0",
            "Expected and measured",
            "unexplained",
            "by auto: ",
        ):
            assert expected in reported.stdout
        record = orjson.loads((await explain(pair.gateway, request_id, "--json")).stdout)
    options = record["timeline"]["placement"]["options"]
    assert {"p0", "d0"} <= {option["worker"][0] for option in options}
    terms = {row["name"]: row for row in record["terms"]}
    assert terms["first token"]["expected_s"] > 0
    assert terms["first token"]["measured_s"] > 0
    assert "word7" not in reported.stdout, "what was said is nobody's business"


async def test_a_request_without_priced_ways_shows_both_attempts_and_no_empty_table():
    async with running_pair(kv_transfer={"when": SplitRule.ALWAYS}) as pair:
        reported = await explain(pair.gateway, await asked(pair, LONG_TEXT))
    assert "prefill side" in reported.stdout
    assert "decode side" in reported.stdout
    assert "Options" not in reported.stdout
    assert "Expected and measured" not in reported.stdout
    assert "–" not in reported.stdout


def shown(timeline, missing=()):
    console = Console(width=200, record=True, file=StringIO())
    console.print(render(life_of(timeline, {}), missing))
    return console.export_text()


def test_an_answer_from_the_cache_is_reported_as_such():
    note = CacheNote(
        CacheResult.HIT_SEMANTIC, similarity=0.9712, age_s=90.2, saved_start_s=0.5, saved_stream_s=2.0
    )
    wait = make_span(Part.GATEWAY_WAIT, 0.004, Source.GATEWAY_CLOCK)
    reported = shown(make_timeline((0.004,), attempts=(), spans=(wait,), cache=note), ["unused"])
    assert reported.startswith("Answered from the cache in 4.00 ms.")
    head = "answer cache: hit semantic, similarity 0.971, made 90 seconds before, which took 500 ms to start"
    assert head in reported
    assert "Expected and measured" not in reported
    assert "step record" not in reported


def test_a_request_that_was_not_served_from_the_cache_says_why():
    reported = shown(make_timeline(cache=CacheNote(CacheResult.BYPASS, "short_follow_up")))
    assert "answer cache: bypass, short follow up" in reported
    assert "Attempts" not in reported, "one attempt that succeeded needs no table"


def test_a_failed_attempt_is_listed():
    attempts = (make_attempt(outcome=Outcome.FAILED, note="cut"), make_attempt(worker="w1"))
    reported = shown(make_timeline(attempts=attempts))
    assert "failed (cut)" in reported
    assert "w1" in reported


async def test_the_step_of_others_that_a_request_waited_for_is_named():
    """A prompt of 5,000 tokens in one step holds up a request that comes meanwhile."""
    shape = EngineShape(max_model_len=16_384, max_num_batched_tokens=16_384)
    slow = FakeEngineConfig(cost=PhaseScaled(PRESETS["fast"], prefill=60.0), shape=shape)
    async with running_engines(1, slow) as (engine,), running_gateway([engine]) as gateway:
        await gateway.chat("warm up", stream=True)
        reading = asyncio.create_task(gateway.chat("word " * 5_000, stream=True))
        await eventually(lambda: engine.engine.running > 0)
        reply = await gateway.chat("short", stream=True, max_tokens=20, ignore_eos=True)
        await reading
        request_id = request_id_of(reply)
        await gateway.timeline(request_id)
        reported = await explain(gateway, request_id)
        record = orjson.loads((await explain(gateway, request_id, "--json")).stdout)
    first = " ".join(reported.stdout.split("request ")[0:2])
    assert "another request's" in first
    assert "Streaming took" in reported.stdout
    ledger = record["ledger"]
    for group in ("start", "stream"):
        parts_s = sum(row["seconds"] for row in ledger[group])
        assert parts_s == pytest.approx(ledger[f"{group}_s"], abs=1e-6)
    unexplained = next(row for row in ledger["start"] if row["name"] == "unexplained")
    assert unexplained["seconds"] < 0.2 * ledger["start_s"]
    assert record["no_step_record"] == []


async def test_without_a_step_record_one_line_says_so():
    async with running_engines(1) as (engine,):
        worker = WorkerConfig(name="w0", url=engine.base_url, model=engine.model)
        async with running_gateway([worker]) as gateway:
            request_id = request_id_of(await gateway.chat(stream=True))
            await gateway.timeline(request_id)
            reported = await explain(gateway, request_id)
    assert "no step record: no step recorder answers at" in reported.stdout
    assert "TTFT" in reported.stdout.splitlines()[0]


async def test_every_id_that_a_user_can_have_is_taken_and_so_is_its_beginning():
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        reply = await gateway.chat(stream=True, headers=[(b"x-request-id", b"order-7")])
        request_id = request_id_of(reply)
        await gateway.timeline(request_id)
        for any_id in (f"chatcmpl-{request_id}", request_id[:6], f"cmpl-{request_id[:9]}", "order-7", "ord"):
            reported = await explain(gateway, any_id)
            assert reported.exit_code == 0, any_id
            assert request_id in reported.stdout.replace("\n", "")


async def test_several_requests_with_one_id_are_listed_and_none_is_taken():
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        ids = []
        for _ in range(2):
            ids.append(request_id_of(await gateway.chat(stream=True, headers=[(b"x-request-id", b"retry")])))
            await gateway.timeline(ids[-1])
        reported = await explain(gateway, "retry")
        assert reported.exit_code == 2
        for request_id in ids:
            assert request_id[:8] in reported.stdout
        assert "Streaming" not in reported.stdout
        assert f"phasewise explain {ids[-1]}" in reported.stderr
        listed = orjson.loads((await explain(gateway, "retry", "--json")).stdout)
        assert [it["id"] for it in listed["matches"]] == ids[::-1]


async def test_an_id_that_is_not_kept_says_how_long_records_are():
    async with running_pair() as pair:
        reported = await explain(pair.gateway, "no-such-request")
    assert isinstance(reported.exception, PhasewiseError)
    assert reported.exception.message == "the gateway has no record of request no-such-request"
    assert "gateway.keep_timelines" in reported.exception.hint


async def test_every_id_that_a_diagnosis_names_can_be_explained():
    stalling = FakeEngineConfig(cost=PhaseScaled(PRESETS["fast"], prefill=100.0, decode=30.0))
    async with running_engines(1, stalling) as (engine,), running_gateway([engine]) as gateway:
        options = ("--probe", "--json", "--slo", "ttft=60s,tpot=1ms", "--admin-key", ADMIN_KEY)
        diagnosing = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "phasewise.cli", "diagnose", gateway.url, *options), stdout=PIPE
        )
        verdict = orjson.loads((await diagnosing.communicate())[0])
        stalls = verdict["stream"]["stalls"]
        named = {stall["request"] for stall in stalls}
        blamed = {prompt["request_id"] for stall in stalls for prompt in stall["guilty"]}
        assert named
        assert blamed
        for any_id in named | blamed:
            reported = await explain(gateway, any_id)
            assert reported.exit_code == 0, reported.exception


async def test_requests_whose_ids_begin_alike_are_told_apart_by_them():
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        for own_id in (b"job-import-7731", b"job-import-7732"):
            await gateway.timeline(request_id_of(await gateway.chat(headers=[(b"x-request-id", own_id)])))
        reported = await explain(gateway, "job-import")
        unknown = await explain(gateway, "has space!")
    assert {"job-import-7731", "job-import-7732"} <= set(reported.stdout.split())
    assert "letters, digits, dots, colons" in unknown.exception.hint


async def test_a_wrong_admin_key_is_said():
    async with running_pair() as pair:
        reported = await explain(pair.gateway, "r", admin_key="wrong")
    assert "requires its admin key and does not know this one" in reported.exception.message
    assert "wrong" not in str(reported.exception)


async def test_a_gateway_without_an_admin_key_says_so_itself():
    async with running_engines(1) as engines, running_gateway(engines, admin_key_sha256=None) as gateway:
        reported = await explain(gateway, "r")
    assert "this gateway has no admin key" in reported.exception.message
    assert "gateway.admin_key_sha256" in reported.exception.hint


def test_without_a_fleet_here_the_gateway_has_to_be_named():
    reported = CliRunner().invoke(app, ["explain", "r"])
    assert "no gateways run here" in reported.exception.message
    assert "--gateway" in reported.exception.hint


def test_nothing_at_the_address_is_one_sentence_and_a_hint():
    reported = CliRunner().invoke(app, ["explain", "r", "--gateway", "http://127.0.0.1:9"])
    assert "nothing answers at http://127.0.0.1:9" in reported.exception.message


async def test_a_requests_life_is_drawn_on_a_page(tmp_path):
    path, config = tmp_path / "life.html", tmp_path / "config.json"
    config.write_bytes(orjson.dumps(LLAMA))
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        request_id = request_id_of(await gateway.chat(stream=True, max_tokens=30, ignore_eos=True))
        await gateway.timeline(request_id)
        without = await explain(gateway, request_id, "--html", str(path))
        assert f"wrote {path}" in without.stderr
        assert "TTFT" in without.stdout.splitlines()[0]
        page = path.read_text()
        for expected in (request_id, "29 decode steps", "Left out: the configuration of fake-model"):
            assert expected in page
        await explain(gateway, request_id, "--html", str(path), "--config", str(config))
        assert "Every step reads" in path.read_text()
        wrong = await explain(gateway, request_id, "--html", str(path), "--config", "no-such-model")
        assert "no-such-model is not on this machine" in wrong.exception.message


async def test_a_disaggregated_request_is_drawn_with_the_steps_of_both_workers(tmp_path):
    path = tmp_path / "life.html"
    async with running_pair(kv_transfer={"when": SplitRule.ALWAYS}) as pair:
        reported = await explain(pair.gateway, await asked(pair, LONG_TEXT), "--html", str(path))
    assert reported.exit_code == 0, reported.exception
    assert "Its prefill and its 7 decode steps" in path.read_text()
    assert "no step record" not in reported.stdout
