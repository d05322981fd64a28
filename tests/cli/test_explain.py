"""Why one request went where it went can be asked of the gateway that served it."""

import asyncio
import sys
from asyncio.subprocess import PIPE
from io import StringIO

import orjson
import pytest
from rich.console import Console
from typer.testing import CliRunner

from phasewise.cli.app import app
from phasewise.core.caching import CacheNote, CacheResult
from phasewise.core.errors import PhasewiseError
from phasewise.core.kv_transfer import SplitRule
from phasewise.core.timeline import Part, Source
from phasewise.fake_engine.engine import FakeEngineConfig
from phasewise.fake_engine.fleet import running_engines
from phasewise.report.explain_view import render
from phasewise.simulator.step_times import PRESETS, PhaseScaled
from tests.builders import make_span, make_timeline
from tests.gateway.harness import ADMIN_KEY, request_id_of, running_gateway
from tests.gateway.pairs import LONG_TEXT, running_pair


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
        for expected in ("Options, in seconds", "p0 > d0", "Expected and measured", "unexplained", "auto: "):
            assert expected in reported.stdout
        record = orjson.loads((await explain(pair.gateway, request_id, "--json")).stdout)
    options = record["timeline"]["placement"]["options"]
    assert {"p0", "d0"} <= {option["worker"][0] for option in options}
    terms = {row["name"]: row for row in record["terms"]}
    assert terms["first token"]["expected_s"] > 0
    assert terms["first token"]["measured_s"] > 0
    assert "word7" not in reported.stdout, "what was said is nobody's business"


async def test_a_request_without_priced_ways_is_reported_with_its_attempts():
    async with running_pair(kv_transfer={"when": SplitRule.ALWAYS}) as pair:
        reported = await explain(pair.gateway, await asked(pair, LONG_TEXT))
    assert "nothing to explain: one kind of worker" in reported.stdout
    assert "prefill side" in reported.stdout
    assert "decode side" in reported.stdout


def test_an_answer_from_the_cache_is_reported_as_such():
    note = CacheNote(
        CacheResult.HIT_SEMANTIC, similarity=0.9712, age_s=90.2, saved_start_s=0.5, saved_stream_s=2.0
    )
    wait = make_span(Part.GATEWAY_WAIT, 0.004, Source.GATEWAY_CLOCK)
    timeline = make_timeline((0.004,), attempts=(), spans=(wait,), cache=note)
    console = Console(width=200, record=True, file=StringIO())
    console.print(render(timeline))
    reported = console.export_text()
    head = "answer cache: hit semantic, similarity 0.971, made 90 seconds before, which took 500 ms to start"
    assert head in reported
    assert "No worker was asked" in reported
    assert "Expected and measured" not in reported
    assert "gateway wait" in reported


def test_a_request_that_was_not_served_from_the_cache_says_why():
    console = Console(width=200, record=True, file=StringIO())
    console.print(render(make_timeline(cache=CacheNote(CacheResult.BYPASS, "short_follow_up"))))
    reported = console.export_text()
    assert "answer cache: bypass, short follow up" in reported
    assert "Attempts" in reported


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


async def test_a_wrong_admin_key_is_said():
    async with running_pair() as pair:
        reported = await explain(pair.gateway, "r", admin_key="wrong")
    assert "requires its admin key" in reported.exception.message
    assert "wrong" not in str(reported.exception)


def test_without_a_fleet_here_the_gateway_has_to_be_named():
    reported = CliRunner().invoke(app, ["explain", "r"])
    assert "no fleets run here" in reported.exception.message
    assert "--gateway" in reported.exception.hint


def test_nothing_at_the_address_is_one_sentence_and_a_hint():
    reported = CliRunner().invoke(app, ["explain", "r", "--gateway", "http://127.0.0.1:9"])
    assert "nothing answers at http://127.0.0.1:9" in reported.exception.message
