"""The answer cache: what is found, served and stored, and that no failure reaches a request."""

import asyncio
import contextlib
import time
from dataclasses import replace

import orjson
import pytest

from phasewise.core.caching import Bypass, CacheResult, Neighbour, Purge
from phasewise.core.errors import (
    EmbedderBusy,
    EmbedderRejected,
    EmbedderUnreachable,
    RequestRejected,
    StoreUnreachable,
)
from phasewise.core.request import Endpoint
from phasewise.fleet.config import CacheConfig, SemanticConfig
from phasewise.gateway.answer_cache import deadline as cache_guard
from phasewise.gateway.answer_cache import learning as cache_learning
from phasewise.gateway.answer_cache import semantic as cache_semantic
from phasewise.gateway.answer_cache.cache import AnswerCache
from phasewise.gateway.answer_cache.headers import cache_headers, cache_wishes
from phasewise.gateway.answer_cache.judges import QuestionPair
from phasewise.gateway.answer_cache.lookup import Made
from phasewise.gateway.answer_cache.semantic import evidence_basis
from phasewise.report.cache_view import next_step
from phasewise.semantic_match.lessons import LessonKind, read_lesson, write_lesson
from phasewise.semantic_match.planted import PER_JUDGED
from tests.gateway.cache_parts import (
    ANOTHER_WORDING,
    ELSEWHERE,
    NEGATED,
    QUESTION,
    REWORDED,
    SIMILARITY,
    AngleEmbedder,
    FlakyStore,
    SetJudge,
    basis_of,
    planted_lesson,
    proving_lessons,
    teach_all,
    trusting_lessons,
)
from tests.gateway.harness import eventually

DOMAIN = "acme/default/m"
MADE = Made("Open the settings.", prompt_tokens=9, output_tokens=4, start_s=0.5, stream_s=1.5)
NEVER_AUDITED, ALWAYS_AUDITED = 0.99, 0.0
STRICT = SemanticConfig()
EASILY_PROVEN = SemanticConfig(max_wrong_answers=0.2, confidence=0.5)


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(cache_guard, "TRY_AGAIN_EVERY_S", 0.01)
    monkeypatch.setattr(cache_learning, "READ_EVERY_S", 0.01)
    monkeypatch.setattr(cache_learning, "COUNT_EVERY_S", 0.01)


class CacheUnderTest(AnswerCache):
    """A cache with its stand-ins at hand."""

    def __init__(self, *, mode, semantic, draw, deadline_s):
        self.store, self.embedder, self.judge = FlakyStore(), AngleEmbedder(), SetJudge()
        config = CacheConfig(mode=mode, semantic=semantic, deadline_s=deadline_s)
        super().__init__(config, self.store, self.embedder if semantic else None, self.judge, lambda: draw)

    @property
    def semantic(self):
        """What its report says of semantic matches."""
        return self.report()["semantic"]

    def enter(self, endpoint, fields, headers, tenant):
        """A request has arrived."""
        return self.entrance.enter(endpoint, fields, cache_wishes(headers), tenant)

    async def ask(self, question=QUESTION, made=MADE, *, tenant="acme", headers=None, **fields):
        """A request from its beginning to its end."""
        lookup = self.enter(Endpoint.CHAT, chat(question, **fields), headers or {}, tenant)
        await self.look_up(lookup)
        self.leave(lookup, None if lookup.result.served else made)
        await self.settled()
        return lookup

    async def misses_by(self, reason, question=QUESTION):
        return (await self.ask(question, made=None)).note.reason == reason

    async def explores(self, question):
        return (await self.ask(question, made=None)).result is CacheResult.EXPLORED

    async def settled(self):
        """Once all that was left behind has been done and learned."""
        await asyncio.gather(self._learning._to_keep.join(), self._learning._to_judge.join())
        if self._semantic_match is not None and self._learning.caught_up and not self.store.hangs:
            await eventually(lambda: self._learning._place == str(self.store._taught) or self.store.error)

    async def teach(self, lessons):
        """What a former life of this gateway would have learned."""
        await teach_all(self.store, lessons)
        await self.settled()

    async def prove(self, question=REWORDED, stored=QUESTION, domain=DOMAIN):
        await self.teach(proving_lessons(question, stored, SIMILARITY, domain))

    async def trust(self):
        await self.teach(trusting_lessons())

    async def outcomes(self):
        """What the judge said of matches, oldest first."""
        _, lessons = await self.store.lessons("")
        return [it for it in map(read_lesson, lessons) if it.kind is LessonKind.MATCH]


@contextlib.asynccontextmanager
async def started_cache(*, mode="serve", semantic=STRICT, draw=NEVER_AUDITED, deadline_s=10.0):
    cache = CacheUnderTest(mode=mode, semantic=semantic, draw=draw, deadline_s=deadline_s)
    await cache.start()
    try:
        yield cache
    finally:
        await cache.stop()


def chat(question=QUESTION, **fields):
    return {"model": "m", "messages": [{"role": "user", "content": question}], **fields}


# --- exact ------------------------------------------------------------------------------------------------


async def test_the_same_question_is_answered_from_what_was_kept():
    async with started_cache(semantic=None) as cache:
        assert (await cache.ask()).result is CacheResult.MISS
        lookup = await cache.ask()
        assert lookup.result is CacheResult.HIT_EXACT
        assert lookup.found.text == MADE.text
        note = lookup.note
        assert (note.saved_start_s, note.saved_stream_s, note.saved_tokens) == (0.5, 1.5, 4)
        assert note.age_s >= 0
        assert note.look_up_s > 0


async def test_an_exact_hit_costs_no_embedding():
    async with started_cache() as cache:
        await cache.ask()
        embedded = len(cache.embedder.embedded)
        assert (await cache.ask()).result is CacheResult.HIT_EXACT
        assert len(cache.embedder.embedded) == embedded


async def test_an_answer_that_did_not_end_by_itself_is_not_kept():
    async with started_cache() as cache:
        await cache.ask(made=None)
        assert (await cache.ask()).result is CacheResult.MISS


async def test_an_answer_expires_however_often_it_is_asked_for():
    async with started_cache(semantic=None) as cache:
        await cache.ask()
        kept = await cache.store.exact(
            *[getattr((await cache.ask()).identity, it) for it in ("key", "scope")]
        )
        assert kept.expires_unix_s - kept.made_unix_s == CacheConfig().ttl_s
        await cache.ask()
        again = await cache.store.exact(kept.key, kept.scope)
        assert again.expires_unix_s == kept.expires_unix_s


# --- what clients ask for -----------------------------------------------------------------------------


async def test_who_opts_out_leaves_no_trace():
    async with started_cache() as cache:
        lookup = await cache.ask(headers={b"cache-control": b"private, No-Store"})
        assert (lookup.result, lookup.note.reason) == (CacheResult.BYPASS, Bypass.OPTED_OUT)
        assert await cache.store.size() == 0
        assert cache.store.asked.count("exact") == 1  # the probe at the start


async def test_a_client_that_asks_for_a_new_answer_gets_it_and_it_is_stored_again():
    async with started_cache(semantic=None) as cache:
        await cache.ask()
        lookup = await cache.ask(made=Made("Ask us."), headers={b"cache-control": b"no-cache"})
        assert (lookup.result, lookup.note.reason) == (CacheResult.MISS, "not_asked")
        assert (await cache.ask()).found.text == "Ask us."


@pytest.mark.parametrize("fields", [{"seed": 1}, {"tools": [{}]}, {"temperature": 0.9}, {"n": 2}])
async def test_what_bypasses_the_cache_is_neither_looked_for_nor_kept(fields):
    async with started_cache() as cache:
        lookup = await cache.ask(**fields)
        assert lookup.result is CacheResult.BYPASS
        assert lookup.identity is None
        assert await cache.store.size() == 0


async def test_namespaces_are_apart_and_tags_name_what_to_forget():
    async with started_cache(semantic=None) as cache:
        await cache.ask(
            headers={b"x-phasewise-cache-namespace": b"docs", b"x-phasewise-cache-tags": b"v1, v2"}
        )
        assert (await cache.ask()).result is CacheResult.MISS
        assert await cache.purge(Purge(tag="v2")) == 1
        lookup = await cache.ask(headers={b"x-phasewise-cache-namespace": b"docs"})
        assert lookup.result is CacheResult.MISS
        assert lookup.identity.namespace == "docs"


@pytest.mark.parametrize("value", [b"", b"Docs", b"a b", b"a/b", b"x" * 42, b"a\n", "ä".encode()])
@pytest.mark.parametrize("header", [b"x-phasewise-cache-namespace", b"x-phasewise-cache-tags"])
async def test_what_is_no_name_is_rejected_and_not_repeated(header, value):
    async with started_cache() as cache:
        with pytest.raises(RequestRejected) as rejected:
            cache.enter(Endpoint.CHAT, chat(), {header: value + b"!"}, "acme")
        assert rejected.value.param == header.decode()
        assert value == b"" or value.decode() not in str(rejected.value)


async def test_an_answer_that_was_under_way_when_its_kind_was_purged_is_not_kept():
    async with started_cache(semantic=None) as cache:
        lookups = {name: cache.enter(Endpoint.CHAT, chat(), {}, name) for name in ("acme", "other")}
        assert await cache.purge(Purge(tenant="acme")) == 0
        for lookup in lookups.values():
            cache.leave(lookup, MADE)
        await cache.settled()
        assert (await cache.ask(tenant="other")).result is CacheResult.HIT_EXACT
        assert (await cache.ask()).result is CacheResult.MISS
        assert (await cache.ask()).result is CacheResult.HIT_EXACT


# --- semantically ---------------------------------------------------------------------------------------


async def test_a_match_that_is_not_proven_is_explored_and_what_the_judge_says_is_taught():
    async with started_cache() as cache:
        stored = await cache.ask()
        lookup = await cache.ask(REWORDED, Made("Open the settings!"))
        assert (lookup.result, lookup.note.reason) == (CacheResult.EXPLORED, "new_change")
        assert lookup.found is None
        assert lookup.note.similarity == pytest.approx(SIMILARITY, abs=1e-3)
        assert lookup.note.embed_s is not None
        assert cache.judge.asked == [QuestionPair(REWORDED, QUESTION, MADE.text)]
        (lesson,) = await cache.outcomes()
        assert (lesson.domain, lesson.right) == (DOMAIN, True)
        assert (lesson.asked, lesson.stored) == (lookup.identity.key, stored.identity.key)
        assert time.time() - 60 < lesson.at_unix_s <= time.time()
        assert cache.semantic["judged"] == {"yes": 1, "no": 0, "unknown": 0}


async def test_a_proven_match_is_served_and_not_kept_under_its_own_words():
    async with started_cache() as cache:
        await cache.prove()
        await cache.ask()
        lookup = await cache.ask(REWORDED)
        assert lookup.result is CacheResult.HIT_SEMANTIC
        assert lookup.found.question == QUESTION
        assert await cache.store.size() == 1
        assert cache.judge.asked == []


async def test_a_proven_match_is_now_and_then_answered_by_the_model_all_the_same():
    async with started_cache(draw=ALWAYS_AUDITED) as cache:
        await cache.prove()
        await cache.ask()
        lookup = await cache.ask(REWORDED)
        assert (lookup.result, lookup.note.reason) == (CacheResult.EXPLORED, "audit")
        assert len(cache.judge.asked) == 1
        servable = cache.semantic["servable"]
        assert (servable["yes"], servable["no"]) == (1, 0)
        assert 0 < servable["wrong_at_most"] < 1


async def test_what_a_guard_forbids_is_neither_served_nor_explored():
    async with started_cache() as cache:
        await cache.ask()
        lookup = await cache.ask(NEGATED)
        assert lookup.result is CacheResult.GUARDED
        assert lookup.note.reason
        assert cache.judge.asked == []


async def test_what_is_far_away_is_a_miss():
    async with started_cache() as cache:
        await cache.ask()
        lookup = await cache.ask(ELSEWHERE)
        assert (lookup.result, lookup.note.reason) == (CacheResult.MISS, "nothing_near")


async def test_a_judge_who_cannot_say_teaches_nothing():
    async with started_cache() as cache:
        cache.judge.verdict = None
        await cache.ask()
        await cache.ask(REWORDED)
        assert (await cache.store.lessons(""))[1] == []
        assert cache.semantic["judged"] == {"yes": 0, "no": 0, "unknown": 1}


@pytest.mark.parametrize("made", [None, Made("", keepable=False)])
async def test_of_a_request_without_an_answer_in_text_the_match_is_judged_and_nothing_is_planted(made):
    async with started_cache() as cache:
        await cache.ask()
        assert (await cache.ask(REWORDED, made)).result is CacheResult.EXPLORED
        assert cache.judge.asked == [QuestionPair(REWORDED, QUESTION, MADE.text)]
        assert cache.judge.planted == []
        assert await cache.store.size() == 1


async def test_an_answer_that_was_cut_off_is_not_kept():
    async with started_cache() as cache:
        await cache.ask()
        await cache.ask(REWORDED, Made("Open the", keepable=False))
        assert await cache.store.size() == 1
        assert cache.report()["unfit"] == 1


async def test_what_requests_teach_is_enough_to_serve_at_last():
    async with started_cache(semantic=EASILY_PROVEN) as cache:
        for limit in range(1, 100):
            # Another limit is another scope: the same change of words, met again.
            await cache.ask(max_tokens=limit)
            lookup = await cache.ask(REWORDED, max_tokens=limit)
            if lookup.result is not CacheResult.EXPLORED:
                break
        assert lookup.result is CacheResult.HIT_SEMANTIC
        assert len(cache.judge.asked) == limit - 1 > 2
        assert any(region["proven"] for region in cache.semantic["regions"])


async def test_what_is_judged_wrong_is_never_served():
    async with started_cache(semantic=EASILY_PROVEN) as cache:
        cache.judge.verdict = False
        for limit in range(1, 40):
            await cache.ask(max_tokens=limit)
            assert (await cache.ask(REWORDED, max_tokens=limit)).result is CacheResult.EXPLORED
        assert cache.semantic["judge"]["trusted"]
        assert cache.semantic["aliases"] == 0


async def test_wrong_matches_end_the_serving():
    async with started_cache() as cache:
        await cache.prove()
        await cache.ask()
        assert (await cache.ask(REWORDED)).result is CacheResult.HIT_SEMANTIC
        await cache.teach([replace((await cache.outcomes())[-1], right=False)] * 3)
        assert await cache.explores(REWORDED)


@pytest.mark.parametrize(
    "changed",
    [
        {"judge": {"kind": "score"}},
        {"judge": {"model": "another"}},
        {"min_similarity": 0.6},
    ],
)
async def test_what_was_learned_under_another_judge_or_other_rules_proves_nothing(changed):
    async with started_cache(semantic=SemanticConfig(**changed)) as cache:
        await cache.prove()
        assert cache.semantic["judge"]["different"] == {"right": 0, "wrong": 0}
        assert cache.semantic["regions"] == []
        await cache.ask()
        assert await cache.explores(REWORDED)


def test_the_basis_of_evidence_depends_on_what_the_judge_is_asked(monkeypatch):
    before = evidence_basis(SemanticConfig())
    monkeypatch.setattr(cache_semantic, "TASK", "Reply with yes.")
    assert evidence_basis(SemanticConfig()) != before


def test_the_basis_of_evidence_depends_on_its_settings_only():
    configs = [
        SemanticConfig(),
        SemanticConfig(min_similarity=0.9),
        SemanticConfig(judge={"kind": "score"}),
        SemanticConfig(judge={"kind": "score", "min_score": 0.8}),
        SemanticConfig(judge={"model": "a"}),
        SemanticConfig(judge={"model": "b"}),
    ]
    assert len(set(map(evidence_basis, configs))) == len(configs)
    other_promise = SemanticConfig(max_wrong_answers=0.05, confidence=0.9, audit_share=0.2)
    unused = SemanticConfig(judge={"min_score": 0.8, "deadline_s": 5.0, "share": 0.5})
    assert evidence_basis(other_promise) == evidence_basis(unused) == evidence_basis(SemanticConfig())


async def test_nothing_is_matched_before_all_that_was_learned_is_known():
    async with started_cache() as cache:
        await cache.ask()
        cache._learning.caught_up = False
        cache.store.lessons = lambda after: asyncio.Event().wait()
        explained = await cache.explain(chat(REWORDED), "acme")
        assert (explained["result"], explained["reason"]) == (CacheResult.MISS, "not_learned_yet")
        lookup = await cache.ask(REWORDED)
        assert (lookup.result, lookup.note.reason) == (CacheResult.MISS, "not_learned_yet")


async def test_a_long_log_is_read_page_by_page_and_bad_lessons_are_passed_over(monkeypatch):
    """One page comes late, one holds nothing that could be read: neither is the end."""
    proving = proving_lessons(REWORDED, QUESTION, SIMILARITY, DOMAIN)
    lessons = [write_lesson(lesson) for lesson in proving]
    unreadable = b"of another version"
    bad = [unreadable, write_lesson(replace(proving[-1], region="nowhere"))]
    pages = [
        [unreadable],
        *([*bad, *lessons[first : first + 50]] for first in range(0, len(lessons), 50)),
        [],
    ]

    async def page_after(place):
        number = int(place or 0)
        if number == 1 and not late:
            late.append(number)
            await asyncio.Event().wait()
        return str(min(number + 1, len(pages))), pages[number] if number < len(pages) else []

    late = []
    cache = CacheUnderTest(mode="serve", semantic=STRICT, draw=NEVER_AUDITED, deadline_s=10.0)
    cache.store.lessons = page_after
    monkeypatch.setattr(cache_learning, "WITHIN_S", 0.2)
    await cache.start()
    try:
        await eventually(lambda: cache._learning.caught_up)
        await cache._learning._to_keep.join()
        cache.leave(cache.enter(Endpoint.CHAT, chat(), {}, "acme"), MADE)
        await cache._learning._to_keep.join()
        lookup = cache.enter(Endpoint.CHAT, chat(REWORDED), {}, "acme")
        await cache.look_up(lookup)
        assert lookup.result is CacheResult.HIT_SEMANTIC
    finally:
        await cache.stop()


async def test_a_start_does_not_wait_for_the_whole_of_a_log_that_is_slow_to_read(monkeypatch):
    monkeypatch.setattr(cache_learning, "WITHIN_S", 0.05)
    cache = CacheUnderTest(mode="serve", semantic=STRICT, draw=NEVER_AUDITED, deadline_s=10.0)

    async def endless(place):
        await asyncio.sleep(0.01)
        return str(int(place or 0) + 1), []

    cache.store.lessons = endless
    async with asyncio.timeout(60):
        await cache.start()
    try:
        assert not cache._learning.caught_up
        place = cache._learning._place
        await eventually(lambda: cache._learning._place != place)
    finally:
        await cache.stop()


async def test_a_log_that_takes_too_long_to_read_costs_no_exact_answers(monkeypatch, caplog):
    monkeypatch.setattr(cache_learning, "WITHIN_S", 0.05)
    async with started_cache(deadline_s=0.1) as cache:
        cache.store.hanging = ("lessons", "size")
        asked = len(cache.store.asked)
        await eventually(lambda: len(cache.store.asked) > asked + 4 * cache_guard.FAILURES_TO_OPEN)
        assert "does not answer" not in caplog.text


# --- aliases ------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def with_alias(**options):
    """A cache whose judge is trusted and has approved REWORDED for QUESTION; nothing is stored."""
    async with started_cache(**options) as cache:
        await cache.trust()
        await cache.ask()
        await cache.ask(REWORDED)
        assert cache.semantic["aliases"] == 1
        await cache.purge(Purge())
        yield cache


async def test_an_approved_pair_is_an_alias_once_its_own_answer_is_gone():
    async with with_alias() as cache:
        await cache.ask()
        lookup = await cache.ask(REWORDED)
        assert (lookup.result, lookup.found.text) == (CacheResult.HIT_ALIAS, MADE.text)
        assert dict(cache_headers(lookup.note))[b"cache-status"] == b"phasewise; hit; detail=alias"
        assert lookup.note.saved_tokens == MADE.output_tokens
        assert lookup.note.embed_s is None
        assert (await cache.explain(chat(REWORDED), "acme"))["result"] is CacheResult.HIT_ALIAS


async def test_an_alias_is_served_when_the_first_answer_has_expired():
    async with started_cache() as cache:
        await cache.trust()
        shift_s = 0.0
        cache.store._now = lambda: time.time() + shift_s
        await cache.ask()
        await cache.ask(REWORDED)
        shift_s = CacheConfig().ttl_s + 60.0
        assert (await cache.ask(made=None)).result is CacheResult.MISS
        shift_s = 0.0
        await cache.ask(made=Made("Ask us."))
        lookup = await cache.ask(REWORDED)
        assert (lookup.result, lookup.found.text) == (CacheResult.HIT_ALIAS, "Ask us.")


async def test_what_an_alias_was_answered_is_its_own_alone():
    """The request that it was approved against, and others that were, are not answered with it."""
    async with started_cache() as cache:
        await cache.trust()
        await cache.ask()
        for wording in (REWORDED, ANOTHER_WORDING):
            # Its nearest stored question is QUESTION, of which both become aliases.
            await cache.ask(wording, made=None)
        await cache.purge(Purge())
        cache.judge.verdict = None
        assert (await cache.ask(REWORDED, Made("Ask us."))).result is CacheResult.MISS
        assert await cache.store.size() == 1
        assert (await cache.ask(REWORDED)).result is CacheResult.HIT_EXACT
        for wording in (ANOTHER_WORDING, QUESTION):
            assert (await cache.ask(wording, made=None)).result is CacheResult.EXPLORED
            assert (await cache.explain(chat(wording), "acme"))["result"] is CacheResult.EXPLORED


async def test_one_approval_leads_to_an_answer_and_never_two_in_a_row():
    async with with_alias() as cache:
        await cache.ask(REWORDED)
        # Only REWORDED is stored, so that this is approved against it.
        await cache.ask(ANOTHER_WORDING, made=None)
        assert cache.semantic["aliases"] == 2
        await cache.purge(Purge())
        cache.judge.verdict = None
        await cache.ask()
        assert (await cache.ask(ANOTHER_WORDING, made=None)).result is CacheResult.EXPLORED
        assert (await cache.ask(REWORDED)).result is CacheResult.HIT_ALIAS
        # What was served is not kept under its own words, which would have made it an answer to the other.
        assert await cache.store.size() == 1
        assert (await cache.ask(ANOTHER_WORDING, made=None)).result is CacheResult.EXPLORED


async def test_some_alias_hits_are_audited_all_the_same():
    async with with_alias() as cache:
        await cache.ask()
        cache._draw = lambda: ALWAYS_AUDITED
        assert (await cache.ask(REWORDED, made=None)).result is CacheResult.EXPLORED
        cache.judge.verdict = False
        assert (await cache.ask(REWORDED, made=None)).result is CacheResult.EXPLORED
        cache._draw = lambda: NEVER_AUDITED
        assert cache.semantic["aliases"] == 0
        assert (await cache.ask(REWORDED)).result is CacheResult.EXPLORED


async def test_one_draw_decides_whether_an_alias_and_whether_a_proven_match_is_audited():
    async with with_alias() as cache:
        await cache.prove()
        await cache.ask()
        draws = iter([ALWAYS_AUDITED, NEVER_AUDITED])
        cache._draw = lambda: next(draws)
        lookup = await cache.ask(REWORDED, made=None)
        assert (lookup.result, lookup.note.reason) == (CacheResult.EXPLORED, "audit")
        assert (await cache.outcomes())[-1].stands_for > 1
        assert (await cache.ask(REWORDED)).result is CacheResult.HIT_ALIAS


async def test_a_judge_that_is_not_trusted_yet_makes_aliases_that_are_not_served():
    async with started_cache() as cache:
        await cache.ask()
        await cache.ask(REWORDED)
        await cache.purge(Purge())
        await cache.ask()
        assert cache.semantic["aliases"] == 1
        assert (await cache.ask(REWORDED, made=None)).result is CacheResult.EXPLORED
        await cache.trust()
        assert (await cache.ask(REWORDED)).result is CacheResult.HIT_ALIAS


@pytest.mark.parametrize("is_of_judge", [True, False])
async def test_an_alias_is_not_served_any_more_once_approvals_prove_little(is_of_judge):
    """Because the judge has turned out to be wrong, or because it refuses most matches of this domain."""
    async with with_alias() as cache:
        await cache.ask()
        assert (await cache.ask(REWORDED)).result is CacheResult.HIT_ALIAS
        if is_of_judge:
            while cache.semantic["judge"]["trusted"]:
                await cache.teach([planted_lesson(False, basis_of())] * 10)
        else:
            approved = (await cache.outcomes())[0]
            await cache.teach([replace(approved, right=False, asked="a", change="a")] * 10)
            assert cache.semantic["judge"]["trusted"]
        assert cache.semantic["aliases"] == 1
        assert (await cache.explain(chat(REWORDED), "acme"))["result"] is CacheResult.EXPLORED
        assert (await cache.ask(REWORDED, made=None)).result is CacheResult.EXPLORED


async def test_a_late_look_up_of_an_alias_is_a_miss():
    async with with_alias() as cache:
        await cache.ask()
        exact = cache.store.exact

        async def late_for_the_alias(key, scope):
            if key != reworded.key:
                raise TimeoutError
            return await exact(key, scope)

        reworded = cache.enter(Endpoint.CHAT, chat(REWORDED), {}, "acme").identity
        cache.store.exact = late_for_the_alias
        assert (await cache.ask(REWORDED, Made("Ask us."))).note.reason == "late"
        cache.store.exact = exact
        for question, text in ((QUESTION, MADE.text), (REWORDED, "Ask us.")):
            lookup = await cache.ask(question)
            assert (lookup.result, lookup.found.text) == (CacheResult.HIT_EXACT, text)


@pytest.mark.parametrize(
    "elsewhere",
    [{"tenant": "other"}, {"headers": {b"x-phasewise-cache-namespace": b"docs"}}, {"stop": ["x"]}],
)
async def test_an_alias_is_nothing_to_another_tenant_namespace_or_scope(elsewhere):
    async with with_alias() as cache:
        await cache.ask()
        await cache.ask(made=Made("Another answer."), **elsewhere)
        lookup = await cache.ask(REWORDED, made=None, **elsewhere)
        assert (lookup.result, lookup.found) == (CacheResult.EXPLORED, None)


# --- whether the judge is to be trusted -----------------------------------------------------------------


async def test_planted_pairs_judge_the_judge():
    async with started_cache() as cache:
        await cache.ask()
        await cache.ask(REWORDED, Made("Ask us."))
        assert {(it.stored, it.answer) for it in cache.judge.planted} == {(REWORDED, "Ask us.")}
        judge = cache.semantic["judge"]
        assert judge["different"]["right"] + judge["equal"]["right"] == len(cache.judge.planted) == 2
        assert judge["different"]["wrong"] == judge["equal"]["wrong"] == 0
        assert (judge["calls"], judge["prompt_tokens"], judge["busy_s"]) == (3, 900, 0.03)
        assert (judge["trusted"], judge["refuted"]) == (False, False)
        # They say nothing of a match.
        assert len(await cache.outcomes()) == 1


@pytest.mark.parametrize(("draw", "planted"), [(0.5, 0), (0.05, 1)])
async def test_a_trusted_judge_is_asked_about_few_planted_pairs(draw, planted):
    async with started_cache() as cache:
        cache._learning._draw = lambda: draw
        await cache.trust()
        await cache.ask()
        await cache.ask(REWORDED)
        assert (len(cache.judge.asked), len(cache.judge.planted)) == (1, planted)


async def test_a_trusted_judge_whose_no_was_wrong_is_asked_how_often_it_is():
    async with started_cache() as cache:
        cache._learning._draw = lambda: 0.5
        await cache.trust()
        await cache.teach([replace(planted_lesson(False, basis_of()), kind=LessonKind.PLANTED_EQUAL)])
        await cache.ask()
        await cache.ask(REWORDED)
        judge = cache.semantic["judge"]
        assert judge["trusted"]
        assert (judge["equal"], len(cache.judge.planted)) == ({"right": PER_JUDGED, "wrong": 1}, PER_JUDGED)


async def test_a_judge_that_says_yes_to_planted_pairs_that_differ_serves_exact_hits_only():
    async with started_cache() as cache:
        cache.judge.gullible, cache._learning._draw = True, lambda: 0.5
        for limit in range(1, 20):
            await cache.ask(max_tokens=limit)
            assert (await cache.ask(REWORDED, max_tokens=limit)).result is CacheResult.EXPLORED
            assert (await cache.ask(max_tokens=limit)).result is CacheResult.HIT_EXACT
        await cache.purge(Purge())
        await cache.ask(max_tokens=1)
        assert (await cache.ask(REWORDED, max_tokens=1)).result is CacheResult.EXPLORED
        judge = cache.semantic["judge"]
        assert (judge["trusted"], judge["refuted"]) == (False, True)
        assert judge["different"]["wrong"] > 0
        # Once it is refuted, it is asked about planted pairs alone, now and then.
        real, planted = len(cache.judge.asked), len(cache.judge.planted)
        assert real < 10
        for draw in (0.5, 0.05):
            cache._learning._draw = lambda draw=draw: draw
            limit += 1
            await cache.ask(max_tokens=limit)
            assert (await cache.ask(REWORDED, max_tokens=limit)).result is CacheResult.EXPLORED
        assert (len(cache.judge.asked), len(cache.judge.planted)) == (real, planted + 1)
        said = next_step(cache.report(), time.time())
        assert "Only exact hits: the judge called" in said


# --- shadow mode --------------------------------------------------------------------------------------


async def test_shadow_mode_serves_nothing_and_says_what_it_would_have():
    async with started_cache(mode="shadow") as cache:
        await cache.prove()
        await cache.ask()
        exact, near = await cache.ask(), await cache.ask(REWORDED)
        assert (exact.result, near.result) == (CacheResult.SHADOW_EXACT, CacheResult.SHADOW_SEMANTIC)
        assert exact.found is near.found is None
        assert await cache.store.size() == 1
        assert cache.report()["saved"] == {"start_s": 1.0, "stream_s": 3.0, "tokens": 8}


async def test_shadow_mode_judges_what_it_could_have_served():
    async with started_cache(mode="shadow") as cache:
        await cache.prove()
        for limit, cache.judge.verdict in enumerate((True, False), start=8):
            await cache.ask(max_tokens=limit)
            await cache.ask(REWORDED, max_tokens=limit)
        assert cache.judge.asked == [QuestionPair(REWORDED, QUESTION, MADE.text)] * 2
        servable = cache.semantic["servable"]
        assert (servable["yes"], servable["no"]) == (1, 1)
        assert not (await cache.outcomes())[-1].right


async def test_shadow_mode_serves_no_alias_and_says_that_it_would_have():
    async with with_alias(mode="shadow") as cache:
        await cache.ask()
        lookup = await cache.ask(REWORDED)
        assert (lookup.result, lookup.found) == (CacheResult.SHADOW_ALIAS, None)
        assert (
            dict(cache_headers(lookup.note))[b"cache-status"] == b"phasewise; fwd=miss; detail=shadow_alias"
        )
        assert await cache.store.size() == 1


# --- what fails ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "error", "reason"),
    [
        ("store", StoreUnreachable("gone"), "store_down"),
        ("embedder", EmbedderUnreachable("gone"), "embedder_down"),
        ("store", ValueError("odd"), "store_down"),
        ("embedder", KeyError("odd"), "embedder_down"),
    ],
)
async def test_whatever_fails_is_a_miss(part, error, reason):
    async with started_cache() as cache:
        getattr(cache, part).error = error
        for _ in range(cache_guard.FAILURES_TO_OPEN + 1):
            lookup = await cache.ask(made=None)
            assert (lookup.result, lookup.note.reason) == (CacheResult.MISS, reason)
        assert cache.degraded == (part,)
        getattr(cache, part).error = None
        await eventually(lambda: cache.degraded == ())
        await cache.ask()
        assert (await cache.ask()).result is CacheResult.HIT_EXACT


@pytest.mark.parametrize("part", ["store", "embedder"])
async def test_whoever_is_late_is_a_miss_and_soon_not_waited_for(part):
    async with started_cache(deadline_s=0.02) as cache:
        getattr(cache, part).hangs = True
        assert (await cache.ask(made=None)).note.reason == "late"
        await eventually(lambda: cache.misses_by(f"{part}_down"))
        assert cache.degraded == (part,)


async def test_a_search_that_has_become_slow_does_not_take_exact_answers_with_it():
    async with started_cache(deadline_s=0.05) as cache:
        await cache.ask(headers={b"cache-control": b"no-cache"})
        cache.store.hanging = ("nearest",)
        assert (await cache.ask(REWORDED, made=None)).note.reason == "late"
        await eventually(lambda: cache.misses_by("store_down", REWORDED))
        assert cache.degraded == ("search",)
        assert (await cache.ask()).result is CacheResult.HIT_EXACT
        cache.store.hanging = ()
        await eventually(lambda: cache.degraded == ())
        await eventually(lambda: cache.explores(REWORDED))


async def test_a_store_that_keeps_nothing_more_still_gives_what_it_has():
    async with started_cache(semantic=None) as cache:
        await cache.ask()
        cache.store.rejecting = ("put",)
        for number in range(2 * cache_guard.FAILURES_TO_OPEN):
            cache.leave(cache.enter(Endpoint.CHAT, chat(f"question {number}"), {}, "acme"), MADE)
        await cache.settled()
        assert cache.store.asked.count("put") > 2 * cache_guard.FAILURES_TO_OPEN
        assert (await cache.ask()).result is CacheResult.HIT_EXACT
        assert cache.degraded == ()


async def test_an_answer_that_cannot_be_noted_is_not_served():
    async with started_cache(semantic=None) as cache:
        await cache.ask()
        (kept,) = cache.store._kept.values()
        kept.answer = replace(kept.answer, made_unix_s=None)
        lookup = await cache.ask(made=None)
        assert (lookup.result, lookup.note.reason) == (CacheResult.MISS, "error")
        assert lookup.found is None


@pytest.mark.parametrize(
    ("error", "reason"),
    [(EmbedderBusy("8 texts wait"), "embedder_busy"), (EmbedderRejected("HTTP 400"), "embedder_rejected")],
)
async def test_an_embedder_that_cannot_take_one_question_is_not_left_alone(error, reason):
    async with started_cache() as cache:
        cache.embedder.error = error
        for _ in range(2 * cache_guard.FAILURES_TO_OPEN):
            assert (await cache.ask(made=None)).note.reason == reason
        cache.embedder.error = None
        assert (await cache.ask(made=None)).note.reason == "nothing_near"


async def test_who_would_wait_too_long_behind_others_does_not_wait_at_all():
    async with started_cache() as cache:
        cache.embedder.hangs, cache._semantic_match._usual_s = True, 3.0
        first = asyncio.create_task(cache.look_up(cache.enter(Endpoint.CHAT, chat(), {}, "acme")))
        await eventually(lambda: cache._semantic_match._under_way == 1)
        assert (await cache.ask(REWORDED, made=None)).note.reason == "embedder_busy"
        cache._semantic_match._usual_s = 0.01
        second = asyncio.create_task(cache.look_up(cache.enter(Endpoint.CHAT, chat(), {}, "acme")))
        await eventually(lambda: cache._semantic_match._under_way == 2)
        for task in (first, second):
            task.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        assert cache._semantic_match._under_way == 0


async def test_an_answer_whose_question_could_not_be_embedded_is_found_by_its_own_words():
    async with started_cache() as cache:
        cache.embedder.error = EmbedderUnreachable("gone")
        await cache.ask()
        assert (await cache.ask()).result is CacheResult.HIT_EXACT


async def test_an_answer_that_a_busy_embedder_had_no_time_for_is_matched_semantically_a_little_later(
    monkeypatch,
):
    monkeypatch.setattr(cache_learning, "EMBED_AGAIN_AFTER_S", 0.01)
    async with started_cache() as cache:
        cache.embedder.error = EmbedderBusy("8 texts wait")
        await cache.ask()
        cache.embedder.error = None
        assert (await cache.ask()).result is CacheResult.HIT_EXACT
        await eventually(lambda: cache.explores(REWORDED))


async def test_a_busy_embedder_is_asked_only_once_more(monkeypatch):
    monkeypatch.setattr(cache_learning, "EMBED_AGAIN_AFTER_S", 0.0)
    async with started_cache() as cache:
        cache.embedder.error = EmbedderBusy("8 texts wait")
        await cache.ask()
        looked_up_kept_and_again = 3
        await eventually(lambda: cache.embedder.embedded.count(QUESTION) == looked_up_kept_and_again)
        await asyncio.sleep(0.05)
        assert cache.embedder.embedded.count(QUESTION) == looked_up_kept_and_again
        assert cache.store.asked.count("put") == 1


async def test_a_store_that_mixes_scopes_up_gives_nobody_anothers_answer():
    async with started_cache() as cache:
        await cache.ask(tenant="other")
        (theirs,) = [it.answer for it in cache.store._kept.values()]

        async def exact(key, scope):
            return theirs

        async def nearest(scope, vector, count):
            return [Neighbour(theirs, 1.0)]

        cache.store.exact, cache.store.nearest = exact, nearest
        for question in (QUESTION, REWORDED):
            lookup = await cache.ask(question, made=None)
            assert (lookup.result, lookup.note.reason) == (CacheResult.MISS, "nothing_near")
            assert lookup.found is lookup.to_judge is None


async def test_an_error_of_its_own_is_a_miss():
    async with started_cache() as cache:
        cache._draw = lambda: 1 / 0
        lookup = await cache.ask()
        assert (lookup.result, lookup.note.reason) == (CacheResult.MISS, "error")


async def test_a_client_that_leaves_ends_the_look_up():
    async with started_cache() as cache:
        cache.store.hangs = True
        lookup = cache.enter(Endpoint.CHAT, chat(), {}, "acme")
        looking = asyncio.create_task(cache.look_up(lookup))
        await asyncio.sleep(0)
        looking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await looking


async def test_more_work_than_fits_is_dropped_and_counted(monkeypatch):
    monkeypatch.setattr(cache_learning, "MOST_WAITING", 2)
    async with started_cache(semantic=None) as cache:
        cache.store.hangs = True
        for number in range(5):
            lookup = cache.enter(Endpoint.CHAT, chat(f"question {number}"), {}, "acme")
            cache.leave(lookup, MADE)
        assert cache.report()["dropped"] == 3
        cache.store.hangs = False


async def test_what_is_left_to_do_is_done_before_the_end():
    cache = CacheUnderTest(mode="serve", semantic=None, draw=0.0, deadline_s=1.0)
    await cache.start()
    cache.leave(cache.enter(Endpoint.CHAT, chat(), {}, "acme"), MADE)
    await cache.stop()
    assert await cache.store.size() == 1


async def test_an_end_does_not_wait_for_a_store_that_hangs(monkeypatch):
    monkeypatch.setattr(cache_learning, "STOP_WITHIN_S", 0.01)
    async with started_cache(semantic=None) as cache:
        cache.store.hangs = True
        cache.leave(cache.enter(Endpoint.CHAT, chat(), {}, "acme"), MADE)


async def test_an_embedder_that_is_away_at_the_start_is_used_when_it_is_there():
    cache = CacheUnderTest(mode="serve", semantic=STRICT, draw=NEVER_AUDITED, deadline_s=10.0)
    cache.embedder.error = EmbedderUnreachable("gone")
    await cache.start()
    try:
        assert (await cache.ask()).note.reason == "embedder_down"
        cache.embedder.error = None
        await eventually(lambda: cache.degraded == ())
        await cache.ask(ELSEWHERE)
        await cache.ask(headers={b"cache-control": b"no-cache"})
        assert (await cache.ask(REWORDED)).result is CacheResult.EXPLORED
    finally:
        await cache.stop()


# --- for admins ---------------------------------------------------------------------------------------


async def test_explain_says_what_would_happen_and_changes_nothing():
    async with started_cache() as cache:
        await cache.ask()
        asked = {"tenant": "acme", "namespace": "default"}
        assert (await cache.explain(chat(), **asked))["result"] is CacheResult.HIT_EXACT
        assert (await cache.explain(chat(seed=1), **asked))["result"] is CacheResult.BYPASS
        assert (await cache.explain(chat(NEGATED), **asked))["neighbours"][0]["guard"]
        reported = await cache.explain(chat(REWORDED), **asked)
        assert reported["result"] is CacheResult.EXPLORED
        (neighbour,) = reported["neighbours"]
        assert (neighbour["guard"], neighbour["change"], neighbour["verified"]) == (None, "new", 0)
        assert QUESTION not in str(reported)
        assert await cache.store.size() == 1
        assert cache.judge.asked == []


async def test_explain_shows_words_only_if_asked_and_only_their_beginning():
    async with started_cache() as cache:
        await cache.ask()
        reported = await cache.explain(chat(REWORDED), "acme", "default", show_text=True)
        assert reported["neighbours"][0]["question"] == QUESTION
        other = await cache.explain(chat(REWORDED), "another", "default", show_text=True)
        assert other["neighbours"] == []


async def test_the_report_counts_and_neither_it_nor_the_log_holds_words(caplog):
    caplog.set_level("DEBUG")
    async with started_cache() as cache:
        for question in (QUESTION, QUESTION, REWORDED, NEGATED, ELSEWHERE):
            await cache.ask(question)
        await cache.ask(seed=1)
        await eventually(lambda: cache.report()["entries"] == 4)
        report = cache.report()
        assert report["requests"] == 6
        assert report["results"] == {"hit_exact": 1, "explored": 1, "guarded": 1, "miss": 2, "bypass": 1}
        assert report["reasons"]["bypass"] == {"seed": 1}
        assert report["look_up_s"]["p50"] > 0
        assert len(cache.judge.planted) == 2
        said = orjson.dumps(report).decode() + next_step(report, time.time()) + caplog.text
        for words in ("password", "settings", "Vienna"):
            assert words not in said
