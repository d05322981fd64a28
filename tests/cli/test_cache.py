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
    return {
        "mode": "shadow",
        "store": "process",
        "since_unix_s": SINCE_UNIX_S,
        "entries": 12,
        "degraded": [],
        "requests": 1_000,
        "results": {"miss": 1_000},
        "reasons": {},
        "saved": {"start_s": 0.0, "stream_s": 0.0, "tokens": 0},
        "look_up_s": None,
        "embed_s": None,
        "dropped": 0,
        "unfit": 0,
        "semantic": make_semantic(),
        **fields,
    }


def make_semantic(**fields):
    return {
        "budget": 0.01,
        "confidence": 0.95,
        "aliases": 0,
        "judged": {"yes": 0, "no": 0, "unknown": 0},
        "servable": {"yes": 0, "no": 0, "wrong_at_most": None},
        "judge": make_judge(),
        "regions": [],
        **fields,
    }


def make_judge(**fields):
    """A judge that is trusted."""
    return {
        "trusted": True,
        "refuted": False,
        "different": {"right": 600, "wrong": 0},
        "equal": {"right": 300, "wrong": 12},
        "wrong_yes_at_most": 0.0093,
        "calls": 1_300,
        "prompt_tokens": 455_000,
        "busy_s": 91.0,
        **fields,
    }


def make_region(**fields):
    return {
        "domain": "a/default/m",
        "verified_at_least": 1,
        "similarity_at_least": 0.9,
        "yes": 310,
        "no": 1,
        "proven": False,
        "missing": 114,
        **fields,
    }


def make_neighbour(**fields):
    neighbour = {"similarity": 0.961, "age_s": 7_300.0, "guard": None, "question": None}
    return {**neighbour, "change": "known", "verified": 4, **fields}


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
    semantic = make_semantic(
        aliases=1_204,
        judged={"yes": 310, "no": 2, "unknown": 4},
        servable={"yes": 90, "no": 1, "wrong_at_most": 0.0321},
        regions=[
            make_region(proven=True, missing=0),
            make_region(verified_at_least=4, similarity_at_least=0.0, yes=3, no=1, missing=350),
            make_region(yes=2, no=0, missing=None),
        ],
    )
    report = make_report(
        results={"shadow_exact": 80, "shadow_alias": 30, "shadow_semantic": 10, "bypass": 300, "miss": 580},
        reasons={"bypass": {"tools": 200, "too_long": 100}},
        saved={"start_s": 12.3, "stream_s": 45.6, "tokens": 7_890},
        look_up_s={"p50": 0.004, "p99": 0.02},
        embed_s={"p50": 0.003, "p99": 0.01},
        semantic=semantic,
        unfit=2,
        dropped=3,
    )
    reported = " ".join(shown(render_report(report)).replace("│", " ").split())
    for words in (
        "shadow mode: nothing is served; identical and semantic matches; 12 answers kept",
        "would serve: judged to ask the same 30 3%",
        "would serve: semantic match",
        "tools 200, too long 100",
        "12.3 s until first tokens (prefill), 45.6 s of streaming (decode), 7,890 tokens",
        "Lookups took 4.00 ms (p99 20.0 ms), embedding 3.00 ms (p99 10.0 ms) of it",
        "3 answers or matches were dropped",
        "2 answers could not be stored",
        "The judge said yes to 310 matches and no to 2, and gave no verdict on 4. 1,204 aliases are known.",
        "Of planted pairs that differ it called 0 of 600 equal (at most 1.0%); of equal ones, 12 of 312",
        "It cost 1,300 requests with 455,000 prompt tokens and 91.0 s.",
        "it rejected 1 of 91: at most 3.3% are wrong (95% confidence; budget 1%).",
        "a/default/m 1+ times 0.90+ 310 1 proven",
        "a/default/m 4+ times any 3 1 350 more yes",
        "a/default/m 1+ times 0.90+ 2 0 judge not tried yet",
        "Next: 12% of requests could have been served: set cache.mode: serve. Semantic matches are served "
        "where they are proven.",
    ):
        assert words in reported, words


def test_a_cache_of_identical_requests_says_nothing_of_a_judge():
    reported = shown(render_report(make_report(semantic=None)))
    assert "identical requests only" in reported
    assert "udge" not in reported
    assert "Only identical requests are looked for." in " ".join(reported.split())


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


def test_time_that_nobody_saw_is_not_called_none():
    saved = {"start_s": 0.0, "stream_s": 0.0, "tokens": 9}
    reported = shown(render_report(make_report(saved=saved)))
    assert "Would have saved 9 tokens; the time of their prefill and decode is unknown." in reported


def test_a_part_that_is_away_comes_before_all_else():
    assert "cache does not respond (store, search)" in advice(degraded=["store", "search"], requests=0)


@pytest.mark.parametrize(
    ("semantic", "says"),
    [
        (
            make_semantic(judge=make_judge(trusted=False, wrong_yes_at_most=0.0421)),
            "Only exact hits: the judge may call up to 4.3% of pairs that differ equal, after 600 planted "
            "ones; 1% is needed. Let it run on.",
        ),
        (
            make_semantic(
                judge=make_judge(trusted=False, refuted=True, different={"right": 80, "wrong": 20})
            ),
            "Only exact hits: the judge called 20 of 100 planted pairs equal that differ, more than "
            "max_wrong_answers (1%). Name a better model in semantic.judge.",
        ),
        (make_semantic(), "Aliases are served; semantic matches are not proven yet."),
        (
            make_semantic(regions=[make_region(), make_region(missing=90)]),
            "not proven yet for want of about 90 more right ones.",
        ),
        (
            make_semantic(regions=[make_region(), make_region(proven=True, missing=0)]),
            "Semantic matches are served where they are proven.",
        ),
        (None, "Only identical requests are looked for."),
    ],
)
def test_why_semantic_matches_are_served_or_only_exact_hits_is_said(semantic, says):
    found = {"hit_exact": 100, "hit_alias": 50, "joined": 50, "miss": 800}
    serving = advice(mode="serve", results=found, semantic=semantic)
    assert serving.startswith("20% of requests were served from the cache. ")
    assert says in serving
    assert says in advice(results={"shadow_exact": 300, "miss": 700}, semantic=semantic)
    assert says in advice(semantic=semantic)


def test_what_shadow_mode_found_is_advised_to_be_served():
    assert advice(results={"shadow_exact": 300, "shadow_alias": 50, "miss": 650}).startswith(
        "35% of requests could have been served: set cache.mode: serve."
    )


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
    stored = (
        make_neighbour(),
        make_neighbour(change="barred", verified=0),
        make_neighbour(change="new", verified=0),
        make_neighbour(change=None),
        make_neighbour(guard="negation", change=None),
    )
    desk = Desk(explanation=explanation("explored", "not_proven", *stored))
    options = ("--system", "be brief", "--field", "max_tokens=8", "--field", "user=me", "--tenant", "a")
    reported = await typed(desk, "explain", "why?", *options)
    assert reported.exit_code == 0, reported.output
    for words in (
        *("explored (not proven)", "0.961", "2 hours", "guard negation", "the words are the same"),
        "this change of words was right 4 times in a row",
        "this change of words was wrong before",
        "this change of words was not verified before",
    ):
        assert words in reported.stdout
    ((fields, tenant, namespace, show_text),) = desk.asked
    assert (fields["max_tokens"], fields["user"], fields["model"]) == (8, "me", "fake-model")
    assert [message["content"] for message in fields["messages"]] == ["be brief", "why?"]
    assert (tenant, namespace, show_text) == ("a", "default", False)


def test_stored_words_are_shown_only_where_the_gateway_sent_them():
    stored = make_neighbour(question="why [not]?", guard="negation")
    reported = shown(render_explanation(explanation("guarded", "negation", stored)))
    assert '"why [not]?"' in reported
    assert "guard negation" in reported


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
            body["messages"][0]["content"] = "how do I pay for it?"
            await ask()

            async def judged():
                report = orjson.loads(await reported("stats", "--json"))
                is_judged = sum(report["semantic"]["judged"].values()) == 1 and report["entries"] == 2
                return report["semantic"] if is_judged else None

            # The judge is the fleet's only model.
            judge = (await eventually(judged))["judge"]
            assert judge["calls"] >= 1
            assert judge["prompt_tokens"] > 0
            assert "The judge said yes to" in await reported("stats")
            assert "2 answers deleted" in await reported("purge", "--tag", "bills")
            assert not await kept()
