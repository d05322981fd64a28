"""Why one request went where it went can be asked of the gateway that served it."""

import asyncio
from io import StringIO

import orjson
import pytest
from rich.console import Console
from typer.testing import CliRunner

from phasewise.cli.app import app
from phasewise.cli.explain_view import render
from phasewise.errors import PhasewiseError
from phasewise.model.caching import CacheNote, CacheResult
from phasewise.model.hand_over import SplitRule
from phasewise.model.timeline import Part, Source
from tests.builders import make_span, make_timeline
from tests.gateway.harness import ADMIN_KEY, request_id_of
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
    async with running_pair(hand_over={"when": SplitRule.AUTO}) as pair:
        for _ in range(3):
            request_id = await asked(pair, LONG_TEXT)
        told = await explain(pair.gateway, request_id)
        assert told.exit_code == 0, told.output
        for expected in ("Ways it had", "p0 > d0", "Expected and measured", "unexplained", "auto: "):
            assert expected in told.stdout
        record = orjson.loads((await explain(pair.gateway, request_id, "--json")).stdout)
    options = record["timeline"]["placement"]["options"]
    assert {"p0", "d0"} <= {option["worker"][0] for option in options}
    terms = {row["name"]: row for row in record["terms"]}
    assert terms["first token"]["expected_s"] > 0
    assert terms["first token"]["measured_s"] > 0
    assert "word7" not in told.stdout, "what was said is nobody's business"


async def test_a_request_without_priced_ways_is_told_with_its_attempts():
    async with running_pair(hand_over={"when": SplitRule.ALWAYS}) as pair:
        told = await explain(pair.gateway, await asked(pair, LONG_TEXT))
    assert "No ways were priced" in told.stdout
    assert "prefill side" in told.stdout
    assert "decode side" in told.stdout


def test_an_answer_from_the_cache_is_told_as_such():
    note = CacheNote(
        CacheResult.HIT_SEMANTIC, similarity=0.9712, age_s=90.2, saved_start_s=0.5, saved_stream_s=2.0
    )
    wait = make_span(Part.GATEWAY_WAIT, 0.004, Source.GATEWAY_CLOCK)
    timeline = make_timeline((0.004,), attempts=(), spans=(wait,), cache=note)
    console = Console(width=200, record=True, file=StringIO())
    console.print(render(timeline))
    told = console.export_text()
    assert (
        "answer cache: hit semantic, similarity 0.971, made 90 s before, which took 0.500 s to start" in told
    )
    assert "No worker was asked" in told
    assert "Expected and measured" not in told
    assert "gateway wait" in told


def test_a_request_that_was_not_served_from_the_cache_says_why():
    console = Console(width=200, record=True, file=StringIO())
    console.print(render(make_timeline(cache=CacheNote(CacheResult.BYPASS, "short_follow_up"))))
    told = console.export_text()
    assert "answer cache: bypass, short follow up" in told
    assert "What was done" in told


async def test_an_id_that_is_not_kept_says_where_ids_come_from():
    async with running_pair() as pair:
        told = await explain(pair.gateway, "no-such-request")
    assert isinstance(told.exception, PhasewiseError)
    assert "keeps no request of this id" in told.exception.message
    assert "x-request-id" in told.exception.hint


async def test_a_wrong_admin_key_is_said():
    async with running_pair() as pair:
        told = await explain(pair.gateway, "r", admin_key="wrong")
    assert "wants its admin key" in told.exception.message
    assert "wrong" not in str(told.exception)


def test_without_a_fleet_here_the_gateway_has_to_be_named():
    told = CliRunner().invoke(app, ["explain", "r"])
    assert "no fleets run here" in told.exception.message
    assert "--gateway" in told.exception.hint


def test_nothing_at_the_address_is_one_sentence_and_a_hint():
    told = CliRunner().invoke(app, ["explain", "r", "--gateway", "http://127.0.0.1:9"])
    assert "nothing answers at http://127.0.0.1:9" in told.exception.message
