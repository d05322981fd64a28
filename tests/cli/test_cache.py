"""`phasewise cache stats`, `purge` and `explain` as they are typed, and what they advise."""

import asyncio
import contextlib
from dataclasses import replace
from functools import partial

import orjson
import pytest
from typer.testing import CliRunner

from phasewise.cli.app import app
from phasewise.core.caching import Bypass, CacheResult, Purge
from phasewise.core.errors import PhasewiseError
from phasewise.fake_engine.engine import FakeEngineConfig
from phasewise.fake_engine.fleet import running_engines
from phasewise.fleet.config import CacheConfig
from phasewise.gateway.api.routes import Router
from phasewise.report import console
from phasewise.report.cache_view import FEWEST_REQUESTS, next_step, render_explanation, render_report
from phasewise.simulator.engine import EngineShape
from tests.gateway.harness import ADMIN_KEY, eventually, running_gateway

SHORT = FakeEngineConfig(shape=EngineShape(mean_output_tokens=12))
TAGS = b"x-phasewise-cache-tags"
SINCE_UNIX_S = 1_800_000_000.0


@pytest.fixture(autouse=True)
def _a_home_and_a_wide_screen(tmp_path, monkeypatch):
    monkeypatch.setenv("PHASEWISE_HOME", str(tmp_path))
    monkeypatch.setattr(console.out, "_width", 140)


def make_report(**fields):
    nothing = {"right": 0, "wrong": 0, "unknown": 0}
    return {
        "mode": "shadow",
        "semantic": True,
        "store": "process",
        "since_unix_s": SINCE_UNIX_S,
        "entries": 12,
        "degraded": [],
        "requests": 1_000,
        "results": {"miss": 1_000},
        "reasons": {},
        "judged": {"exact": nothing, "semantic": nothing},
        "wrong": make_wrong(),
        "saved": {"start_s": 0.0, "stream_s": 0.0, "tokens": 0},
        "look_up_s": None,
        "embed_s": None,
        "dropped": 0,
        "unfit": 0,
        "cells": [],
        **fields,
    }


def make_wrong(right=0, wrong=0, at_most=None, **fields):
    judged = right + wrong
    counts = {"right": right, "wrong": wrong, "share": wrong / judged if judged else None}
    return {**counts, "at_most": at_most, "confidence": 0.95, "budget": 0.01, **fields}


def make_neighbour(**fields):
    return {
        "similarity": 0.961,
        "age_s": 7_300.0,
        "guard": None,
        "doubt": None,
        "kind": "function",
        "cell": "form/known",
        "right": 40,
        "wrong": 0,
        "proven": False,
        "missing": 260,
        **fields,
    }


class Desk:
    """A cache that says what it was made to say."""

    def __init__(self, report=None, explanation=None):
        self._report, self._explanation = report, explanation
        self.asked = []

    def report(self):
        return self._report

    async def purge(self, what):
        self.asked.append(what)
        return 7

    async def explain(self, fields, tenant, namespace, show_text):
        self.asked.append((fields, tenant, namespace, show_text))
        return self._explanation


@contextlib.asynccontextmanager
async def gateway_with(desk):
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        gateway.app.serve = Router(replace(gateway.app.gateway, cache=desk)).serve
        yield gateway


def which(arguments, gateway):
    """The gateway: what `stats` and `purge` are about, and where `explain` asks."""
    return ["--gateway", gateway.url] if arguments[0] == "explain" else [gateway.url]


async def typed(desk, *arguments, admin_key=ADMIN_KEY, answer=None):
    async with gateway_with(desk) as gateway:
        whole = ["cache", *arguments, *which(arguments, gateway), "--admin-key", admin_key]
        return await asyncio.to_thread(CliRunner().invoke, app, whole, input=answer)


def shown(rendered):
    with console.out.capture() as captured:
        console.out.print(rendered)
    return captured.get()


# --- stats ------------------------------------------------------------------------------------------------


def test_the_report_is_reported_in_a_table_and_words():
    report = make_report(
        requests=1_000,
        results={"shadow_exact": 80, "shadow_semantic": 40, "bypass": 300, "miss": 580},
        reasons={"bypass": {"tools": 200, "too_long": 100}},
        judged={
            "exact": {"right": 78, "wrong": 2, "unknown": 0},
            "semantic": {"right": 310, "wrong": 0, "unknown": 4},
        },
        wrong=make_wrong(right=310, at_most=0.0095),
        saved={"start_s": 12.3, "stream_s": 45.6, "tokens": 7_890},
        look_up_s={"p50": 0.004, "p99": 0.02},
        embed_s={"p50": 0.003, "p99": 0.01},
        cells=[
            {"domain": "a/default/m", "cell": "form/known", "right": 310, "wrong": 0}
            | {"proven": True, "missing": 0, "at_most": 0.0095},
            {"domain": "a/default/m", "cell": "content/known", "right": 3, "wrong": 1}
            | {"proven": False, "missing": 350, "at_most": 0.9},
            {"domain": "a/default/m", "cell": "doubted/new", "right": 3, "wrong": 1}
            | {"proven": False, "missing": 350, "at_most": 0.9},
        ],
    )
    reported = shown(render_report(report))
    for words in (
        "shadow mode: nothing is served",
        "would serve: semantic match",
        "tools 200, too long 100",
        "12.3 s until first tokens (prefill), 45.6 s of streaming (decode), 7,890 tokens",
        "Lookups took 4.00 ms (p99 20.0 ms), embedding 3.00 ms (p99 10.0 ms) of it",
        "different form, known",
        "proven",
        "different words, known",
        "350 more right",
        "doubted by a guard, new",
        "learning only",
        "Next: shadow found that 12% of requests could be served from the cache, none wrong of 310 judged "
        "(at most 1.0% with 95% confidence): set cache.mode: serve.",
    ):
        assert words in " ".join(reported.split()), words


async def test_the_report_for_programs_is_the_gateways_own():
    report = make_report()
    assert orjson.loads((await typed(Desk(report), "stats", "--json")).stdout) == report
    assert "Next: " in (await typed(Desk(report), "stats")).stdout


def advice(**fields):
    return next_step(make_report(**fields), SINCE_UNIX_S + 60)


def test_too_few_requests_are_too_few_to_advise_anything():
    reported = advice(requests=FEWEST_REQUESTS - 1, results={"shadow_exact": 100})
    assert "not enough to judge" in reported
    assert "mode: serve" not in reported


def test_no_request_at_all_says_to_send_some():
    assert "no requests in 60 s" in advice(requests=0, results={})


def test_a_cache_that_found_nothing_is_advised_against():
    assert "disable the cache" in advice()


def test_a_cache_that_is_on_its_way_to_a_proof_is_not_advised_against():
    cell = {"domain": "d", "cell": "form/known", "wrong": 0, "proven": False}
    reported = advice(results={"explored": 500, "miss": 500}, cells=[cell | {"right": 283, "missing": 114}])
    assert "none could have been served yet" in reported
    assert "114 more right answers" in reported
    assert "disable the cache" in advice(cells=[cell | {"right": 0, "missing": 400}])


def test_time_that_nobody_saw_is_not_called_none():
    saved = {"start_s": 0.0, "stream_s": 0.0, "tokens": 9}
    reported = shown(render_report(make_report(saved=saved)))
    assert "Would have saved 9 tokens; the time of their prefill and decode is unknown." in reported


def test_a_part_that_is_away_comes_before_all_else():
    assert "cache does not respond (store, search)" in advice(degraded=["store", "search"], requests=0)


def test_exact_hits_alone_are_advised_even_while_nothing_is_proven_semantically():
    cells = [{"domain": "d", "cell": "form/known", "right": 1, "wrong": 0, "proven": False, "missing": 250}]
    reported = advice(results={"shadow_exact": 300}, cells=cells)
    assert "30% of requests could be served from the cache, all of them identical requests: set" in reported
    assert "250 more right answers" in reported


def test_that_a_model_varies_on_the_same_request_is_said():
    judged = {"exact": {"right": 5, "wrong": 5, "unknown": 0}, "semantic": {}}
    assert "answered 5 of 10 differently" in advice(results={"shadow_exact": 300}, judged=judged, wrong=None)


def test_a_share_of_wrong_ones_that_is_not_shown_to_be_small_is_not_praised():
    few = advice(results={"shadow_semantic": 300}, wrong=make_wrong(right=30, at_most=0.09))
    assert "none wrong of 30 judged (at most 9.0% with 95% confidence)" in few
    assert "wait until these matches alone show that they stay within" in few
    bad = advice(results={"shadow_semantic": 300}, wrong=make_wrong(right=90, wrong=10, at_most=0.2))
    assert "10 wrong of 100 judged" in bad
    assert "keep shadow mode" in bad
    unjudged = advice(results={"shadow_semantic": 300})
    assert "none has been judged" in unjudged
    assert not any("set cache.mode: serve" in reported for reported in (bad, unjudged))


def test_serving_is_reported_with_what_audits_found():
    served = {"results": {"hit_exact": 100, "hit_semantic": 100}, "mode": "serve"}
    assert "20% of requests were served" in advice(**served, wrong=make_wrong(right=300, at_most=0.009))
    assert "judge" in advice(**served, wrong=make_wrong(right=90, wrong=10, at_most=0.2))
    assert "No semantic match has been checked yet" in advice(**served)
    assert "No action is needed" in advice(**served, wrong=None)


def test_a_kind_of_match_is_said_to_be_served_no_longer_only_if_it_is_not():
    served = {"results": {"hit_semantic": 100}, "mode": "serve", "wrong": make_wrong(2, 1, at_most=0.9)}
    cell = {"domain": "d", "cell": "form/known", "right": 500, "wrong": 1, "missing": 0}
    unmarred = cell | {"wrong": 0, "proven": True}
    learned_from = cell | {"cell": "form/new", "proven": True}
    proven, ended = cell | {"proven": True}, cell | {"cell": "content/known", "proven": False}
    assert "are no longer served" in advice(**served, cells=[ended, unmarred, learned_from])
    for cells in ([proven], [proven, ended], []):
        reported = advice(**served, cells=cells)
        assert "may still be served" in reported
        assert "no longer" not in reported


# --- purge ------------------------------------------------------------------------------------------------


async def test_what_is_named_is_purged():
    desk = Desk()
    reported = await typed(desk, "purge", "--tenant", "a", "--tag", "b", "--yes")
    assert reported.stdout.strip() == "7 answers deleted"
    assert desk.asked == [Purge(tenant="a", tag="b")]


async def test_all_is_purged_only_once_it_is_confirmed():
    desk = Desk()
    rejected = CliRunner().invoke(app, ["cache", "purge", "http://127.0.0.1:9", "--all"], input="n")
    assert rejected.exit_code == 1
    assert not isinstance(rejected.exception, PhasewiseError), "nobody was asked to purge"
    assert (await typed(desk, "purge", "--all", answer="y\n")).exit_code == 0
    assert desk.asked == [Purge()]


@pytest.mark.parametrize("arguments", [(), ("--all", "--tenant", "a")])
def test_an_order_that_is_not_clear_reaches_no_gateway(arguments):
    reported = CliRunner().invoke(app, ["cache", "purge", "http://127.0.0.1:9", *arguments])
    assert "give either --all or a selection" in reported.exception.message


# --- explain ----------------------------------------------------------------------------------------------


def explanation(result, reason=None, *neighbours):
    return {"result": result, "reason": reason, "similarity": None, "domain": "d", "neighbours": neighbours}


async def test_a_question_is_explained_with_its_neighbours():
    near = make_neighbour()
    doubted = make_neighbour(doubt="order", cell="doubted/new", right=1, missing=None)
    forbidden = make_neighbour(guard="negation", cell=None, kind=None)
    desk = Desk(explanation=explanation("explored", "not_proven", near, doubted, forbidden))
    options = ("--system", "be brief", "--field", "max_tokens=8", "--field", "user=me", "--tenant", "a")
    reported = await typed(desk, "explain", "why?", *options)
    assert reported.exit_code == 0, reported.output
    known = "different form, known: 40 right and 0 wrong of its kind, 260 more right"
    doubt = "doubted by a guard, new (order): 1 right and 0 wrong of its kind, learning only"
    for words in ("explored (not proven)", "0.961", "2 hours", "guard negation", known, doubt):
        assert words in reported.stdout
    ((fields, tenant, namespace, show_text),) = desk.asked
    assert (fields["max_tokens"], fields["user"], fields["model"]) == (8, "me", "fake-model")
    assert [message["content"] for message in fields["messages"]] == ["be brief", "why?"]
    assert (tenant, namespace, show_text) == ("a", "default", False)


def test_stored_words_are_shown_only_where_the_gateway_sent_them():
    stored = make_neighbour(question="why [not]?", guard="negation", detail="not")
    reported = shown(render_explanation(explanation("guarded", "negation", stored)))
    assert '"why [not]?"' in reported
    assert "guard negation: not" in reported


def test_nothing_near_reports_what_else_belongs_to_a_request():
    reported = shown(render_explanation(explanation("miss", "nothing_near")))
    assert "--field max_tokens=64" in reported
    exact = shown(render_explanation(explanation("miss", "exact_only")))
    assert "gateway.cache.semantic" in exact
    started = shown(render_explanation(explanation("miss", "not_learned_yet")))
    assert "run this again in a moment" in " ".join(started.split())
    assert "--field" not in started


@pytest.mark.parametrize("result", [it for it in CacheResult if not it.name.startswith(("SHADOW", "JOINED"))])
def test_every_result_has_words(result):
    reported = shown(render_explanation(explanation(result, Bypass.TOOLS)))
    assert reported.startswith(f"{result} (tools): ")


def test_a_field_without_a_value_is_rejected():
    reported = CliRunner().invoke(app, ["cache", "explain", "why?", "--model", "m", "--field", "max_tokens"])
    assert "NAME=VALUE" in reported.exception.message


# --- wrong turns ------------------------------------------------------------------------------------------


async def test_a_gateway_without_a_cache_says_how_to_have_one():
    reported = await typed(None, "purge", "--tenant", "a")
    assert isinstance(reported.exception, PhasewiseError)
    assert "this gateway has no answer cache" in reported.exception.message
    assert "gateway.cache" in reported.exception.hint


async def test_a_wrong_admin_key_is_said_without_it():
    reported = await typed(Desk(), "stats", admin_key="not-the-key")
    assert "requires its admin key" in reported.exception.message
    assert "not-the-key" not in str(reported.exception)


def test_nothing_at_the_address_is_one_sentence_and_a_hint():
    reported = CliRunner().invoke(app, ["cache", "stats", "http://127.0.0.1:9"])
    assert "nothing answers at http://127.0.0.1:9" in reported.exception.message


# --- a whole cache ----------------------------------------------------------------------------------------


async def test_the_commands_follow_a_real_cache_from_shadow_to_purge():
    async with running_engines(1, SHORT) as engines:
        server = {"kind": "http", "url": engines[0].base_url, "model": engines[0].model}
        cache = CacheConfig(semantic={"embedder": server, "min_similarity": 0.01}, deadline_s=10.0)
        async with running_gateway(engines, cache=cache) as gateway:

            async def reported(*arguments):
                whole = ["cache", *arguments, *which(arguments, gateway), "--admin-key", ADMIN_KEY]
                done = await asyncio.to_thread(CliRunner().invoke, app, whole)
                assert done.exit_code == 0, done.output
                return done.stdout

            async def kept():
                explanation = await reported("explain", "how do I pay?", "--json")
                return orjson.loads(explanation)["result"] == "hit_exact"

            body = {"model": "fake-model", "messages": [{"role": "user", "content": "how do I pay?"}]}
            ask = partial(gateway.fetch, "POST", "/v1/chat/completions", body, [(TAGS, b"bills")])
            await ask()
            await eventually(kept, timeout_s=30.0)
            await ask()
            report = orjson.loads(await reported("stats", "--json"))
            assert report["results"] == {"miss": 1, "shadow_exact": 1}
            assert "would serve: identical request" in await reported("stats")
            near = orjson.loads(await reported("explain", "how do I pay for it?", "--json"))
            assert near["neighbours"], "the fake engine's vectors of these two are near enough"
            assert "Similar stored questions" in await reported(
                "explain", "how do I pay for it?", "--show-text"
            )
            assert "1 answer deleted" in await reported("purge", "--tag", "bills")
            assert not await kept()
