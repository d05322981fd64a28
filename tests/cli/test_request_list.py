"""The requests that a gateway has finished can be listed, the slowest first by any figure."""

import asyncio
import time

import orjson
import pytest
from typer.testing import CliRunner

from phasewise.cli.app import app
from phasewise.cli.request_list import moment_in
from phasewise.core.errors import ConfigError
from phasewise.core.units import number
from phasewise.fake_engine.engine import FakeEngineConfig
from phasewise.fake_engine.fleet import running_engines
from phasewise.fleet.config import ApiKey
from phasewise.gateway.api.auth import key_sha256
from tests.gateway.harness import ADMIN_KEY, eventually, request_id_of, running_gateway

KEYS = tuple(ApiKey(sha256=key_sha256(name), tenant=name) for name in ("shop", "lab"))


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("PHASEWISE_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")


async def listed(gateway, *options, admin_key=ADMIN_KEY):
    arguments = ["explain", "--list", "--gateway", gateway.url, "--admin-key", admin_key, *options]
    reported = await asyncio.to_thread(CliRunner().invoke, app, arguments)
    assert reported.exit_code == 0, reported.exception or reported.output
    return reported.stdout


async def asked(gateway, tokens, key=None, **fields):
    headers = [(b"authorization", b"Bearer " + key.encode())] if key else []
    kept = len(gateway.app.gateway.timelines)
    reply = await gateway.chat(max_tokens=tokens, ignore_eos=True, stream=True, headers=headers, **fields)
    await eventually(lambda: len(gateway.app.gateway.timelines) > kept)
    return request_id_of(reply)


async def test_the_newest_come_first_and_the_last_line_says_how_to_explain_the_first():
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        ids = [await asked(gateway, 8) for _ in range(3)]
        shown = await listed(gateway, "--limit", "2")
    lines = shown.splitlines()
    assert lines[0] == "finished requests, newest first; model fake-model; worker w0"
    assert [line.split()[0] for line in lines[-3:-1]] == [it[:8] for it in reversed(ids[1:])]
    assert lines[-1] == f"Explain the first: `phasewise explain {ids[-1][:8]} --gateway {gateway.url}`"
    assert ids[0][:8] not in shown


async def test_every_line_fits_80_columns_even_if_nothing_is_in_common():
    async with running_engines(2) as engines, running_gateway(engines, api_keys=KEYS) as gateway:
        await asyncio.gather(*(asked(gateway, 60, key) for key in ("shop", "lab") * 3))
        await eventually(lambda: len(gateway.app.gateway.timelines) == 6)
        shown = await listed(gateway)
    assert {"shop", "lab", "w0", "w1"} <= set(shown.split())
    assert max(map(len, shown.splitlines()[:-1])) <= 80
    assert "…" not in shown


async def test_the_slowest_come_first_by_the_figure_asked_for_of_one_tenant():
    async with running_engines(1) as engines, running_gateway(engines, api_keys=KEYS) as gateway:
        made = [await asked(gateway, tokens, key) for tokens, key in ((40, "shop"), (9, "lab"), (90, "lab"))]
        ranked = orjson.loads(await listed(gateway, "--slowest", "e2e", "--json"))["requests"]
        assert {it["id"] for it in ranked} == set(made)
        assert [it["e2e_s"] for it in ranked] == sorted((it["e2e_s"] for it in ranked), reverse=True)
        assert all(it["e2e_s"] > it["ttft_s"] > 0 for it in ranked)
        found = orjson.loads(await listed(gateway, "--slowest", "e2e", "--tenant", "lab", "--json"))
        assert found["requests"] == [it for it in ranked if it["tenant"] == "lab"]
        assert {it["id"] for it in found["requests"]} == set(made[1:])
        found = orjson.loads(await listed(gateway, "--tenant", "shop", "--json"))["requests"]
        assert [(it["id"], it["tenant"], it["output_tokens"]) for it in found] == [(made[0], "shop", 40)]


async def test_an_empty_list_says_why():
    async with running_engines(1) as engines, running_gateway(engines, api_keys=KEYS) as gateway:
        assert "none has finished since" in await listed(gateway)
        await asked(gateway, 1, "shop")
        assert "is of tenant lab" in await listed(gateway, "--tenant", "lab")
        shown = await listed(gateway, "--slowest", "tpot")
        assert "has a TPOT; only streamed answers of two or more tokens" in shown
        assert "none has finished" not in shown
        assert orjson.loads(await listed(gateway, "--tenant", "lab", "--json")) == {"requests": []}


async def test_what_still_runs_is_counted_where_nothing_has_finished():
    async with running_engines(1) as (engine,), running_gateway([engine]) as gateway:
        engine.inject("core_hang", after_tokens=2)
        running = asyncio.create_task(gateway.chat(stream=True))
        await eventually(lambda: gateway.under_way > 0)
        assert "1 request still running; --outcome running lists them" in await listed(gateway)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def test_without_a_fleet_here_the_address_is_asked_for():
    reported = CliRunner().invoke(app, ["explain", "--list"])
    assert reported.exception.message == "no gateways run here, so --gateway is required"
    assert reported.exception.hint == "start a fleet with `phasewise up`, or give --gateway http://host:port"


async def test_a_gateways_own_file_names_it_as_well(tmp_path):
    file = tmp_path / "gw.yaml"
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        request_id = await asked(gateway, 3)
        port = gateway.url.rpartition(":")[2]
        file.write_text(
            f"gateway: {{port: {port}}}\nworkers: [{{name: a, url: 'http://127.0.0.1:9', model: m}}]\n"
        )
        arguments = ["explain", "--list", "--gateway", str(file), "--admin-key", ADMIN_KEY]
        reported = await asyncio.to_thread(CliRunner().invoke, app, arguments)
    assert request_id[:8] in reported.stdout


async def test_the_newest_are_those_that_arrived_last_though_a_longer_one_ended_later():
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        long = asyncio.create_task(gateway.chat(stream=True, max_tokens=200, ignore_eos=True))
        await eventually(lambda: gateway.under_way > 0)
        short = await asked(gateway, 2)
        first = request_id_of(await long)
        await gateway.timeline(first)
        found = orjson.loads(await listed(gateway, "--json"))["requests"]
    assert [it["id"] for it in found] == [short, first]


async def test_a_narrow_screen_gets_fewer_columns_and_no_cut_figure():
    models = ("a-model-with-a-rather-long-name", "another-model-with-a-long-name")
    async with (
        running_engines(1, FakeEngineConfig(model=models[0])) as (one,),
        running_engines(1, FakeEngineConfig(model=models[1])) as (other,),
        running_gateway([one, other], api_keys=KEYS) as gateway,
    ):
        for model, key in zip(models * 2, ("shop", "lab", "lab", "shop"), strict=True):
            await asked(gateway, 20, key, model=model)
        shown = await listed(gateway)
        found = orjson.loads(await listed(gateway, "--json"))["requests"]
    assert max(map(len, shown.splitlines()[:-1])) <= 80
    assert "…" not in shown
    assert "Left out to fit 80 columns: model" in shown
    assert [it["ttft_s"] for it in found if number(it["ttft_s"]) not in shown] == []
    assert {it["model"] for it in found} == set(models)


async def test_a_client_finds_its_own_ids_and_the_time_of_its_arrival():
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        for own_id in (b"job.1:a", b"twice", b"twice"):
            headers = [(b"x-request-id", own_id)]
            request_id = request_id_of(await gateway.chat(headers=headers))
            await gateway.timeline(request_id)
        shown = await listed(gateway)
    assert "job.1:a" in shown
    assert "twice" not in shown  # explain could not tell which of them is meant
    assert request_id[:8] in shown
    assert f"\n            {time.strftime('%Z')} " in shown or f" {time.strftime('%Z')} " in shown


async def test_requests_are_listed_by_when_they_ran_and_how_they_ended():
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        served = await asked(gateway, 3)
        rejected = await asked(gateway, 3, model="unknown-model")
        shown = await listed(gateway, "--outcome", "rejected")
        assert rejected[:8] in shown
        assert served[:8] not in shown
        assert "no_worker_for_model" in shown
        assert served[:8] in await listed(gateway, "--since", "5m")
        assert "fits all options" in await listed(gateway, "--until", "5m")
        ranked = orjson.loads(await listed(gateway, "--since", "5m", "--slowest", "ttft", "--json"))
        assert [it["id"] for it in ranked["requests"]] == [served]


async def test_a_request_that_was_rejected_before_its_model_was_read_hides_no_column():
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        await asked(gateway, 3)
        await asked(gateway, 3, kv_transfer_params={})
        shown = await listed(gateway)
    assert shown.startswith("finished requests, newest first; model fake-model\n")


async def test_running_requests_are_listed_with_their_time_so_far():
    async with running_engines(1) as (engine,), running_gateway([engine]) as gateway:
        engine.inject("core_hang", after_tokens=2)
        running = asyncio.create_task(gateway.chat(stream=True, headers=[(b"x-request-id", b"slow-one")]))
        await eventually(lambda: gateway.under_way > 0)
        shown = await listed(gateway, "--outcome", "running")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert shown.startswith("running requests, newest first")
    assert {"slow-one", "running"} <= set(shown.split())


async def test_a_request_that_its_client_gave_up_is_among_the_slowest():
    async with running_engines(1) as (engine,), running_gateway([engine]) as gateway:
        engine.inject("core_hang", times=1)
        left = asyncio.create_task(gateway.chat(stream=True, headers=[(b"x-request-id", b"gave-up")]))
        await eventually(lambda: gateway.under_way > 0)
        await asyncio.sleep(0.3)
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
        await gateway.timeline_of_client("gave-up")
        found = orjson.loads(await listed(gateway, "--slowest", "e2e", "--json"))["requests"]
    assert [(it["client_id"], it["outcome"], it["e2e_s"]) for it in found] == [("gave-up", "cancelled", None)]
    assert found[0]["total_s"] > 0.2


@pytest.mark.parametrize(("text", "ago_s"), [("90s", 90.0), ("2h", 7200.0), ("1d", 86_400.0), ("15m", 900.0)])
def test_an_age_is_a_time(text, ago_s):
    assert time.time() - moment_in(text) == pytest.approx(ago_s, abs=5.0)


def test_a_time_of_the_day_is_its_last_and_a_date_may_have_a_zone():
    for text in ("00:00", "23:59:59", "12:30"):
        assert 0 <= time.time() - moment_in(text) < 86_400
        assert time.strftime("%H:%M:%S", time.localtime(moment_in(text))).startswith(text)
    assert moment_in("2026-01-31T14:02:00+00:00") == 1_769_868_120.0
    with pytest.raises(ConfigError, match="'noon' is no time"):
        moment_in("noon")


def test_a_time_yet_to_come_is_yesterdays_for_since_and_todays_for_until():
    now_s = time.time()
    assert now_s - 86_400 - 2 <= moment_in("23:59:59") <= now_s + 1
    assert now_s - 1 <= moment_in("23:59:59", may_come=True) <= now_s + 86_400


def test_times_the_wrong_way_round_are_pointed_out():
    result = CliRunner().invoke(app, ["explain", "--list", "--since", "5m", "--until", "10m"])
    assert isinstance(result.exception, ConfigError)
    assert "is later than --until" in result.exception.message
