"""Requests that ask the same at the same time share one answer, whoever of them and of the workers leaves."""

from __future__ import annotations

import asyncio
import contextlib
from random import Random

import orjson
import pytest

from phasewise.core.caching import CacheNote, CacheResult
from phasewise.fake_engine.fleet import running_engines
from phasewise.fleet.config import ApiKey, CacheConfig, SloClass
from phasewise.gateway.api.auth import key_sha256
from tests.gateway.harness import chat_body, events_of, eventually, listening, request_id_of, running_gateway
from tests.gateway.server.test_client_timeouts import STREAM_HEAD, chunked, connected, head_of
from tests.gateway.upstream.test_resumption import choices_of, text_of, undisturbed

SERVE = CacheConfig(mode="serve")
USAGE = {"include_usage": True}
FRAME = {"id": "chatcmpl-of-the-engine", "object": "chat.completion.chunk", "created": 7, "model": "m"}
END = [
    {"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "stop"}]},
    {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}},
]


class Worker:
    """A worker that writes an answer's pieces on demand, and remembers who asked and who hung up."""

    def __init__(self):
        self.asked = 0
        self.hung_up = 0
        self.writers = []

    async def answer(self, head, body, writer):
        self.asked += 1
        self.writers.append(writer)
        if not orjson.loads(body).get("stream"):
            return
        writer.write(STREAM_HEAD)
        self.say(FRAME | {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})

    def say(self, *chunks, to=-1):
        for chunk in chunks:
            data = chunk if isinstance(chunk, bytes) else b"data: " + orjson.dumps(FRAME | chunk) + b"\n\n"
            self.writers[to].write(chunked(data))

    def say_words(self, *words, to=-1):
        self.say(*({"choices": [{"index": 0, "delta": {"content": word}}]} for word in words), to=to)

    def end(self, to=-1, stop_reason=None):
        last = END[0]["choices"][0] | {"stop_reason": stop_reason}
        self.say({"choices": [last]}, END[1], b"data: [DONE]\n\n", to=to)
        self.writers[to].write(b"0\r\n\r\n")

    def say_plainly(self, text, to=-1, stop_reason=None):
        choice = {"index": 0, "message": {"content": text}, "finish_reason": "stop"}
        choice["stop_reason"] = stop_reason
        body = orjson.dumps(FRAME | {"choices": [choice], "usage": END[1]["usage"]})
        self.writers[to].write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)


@contextlib.asynccontextmanager
async def stage(cache=SERVE, **options):
    worker = Worker()
    async with (
        listening(worker.answer) as config,
        running_gateway([config], cache=cache, **options) as gateway,
    ):
        yield worker, gateway
        assert len(flights(gateway)) == 0


def flights(gateway):
    return gateway.app.gateway.pipeline._driver.found.flights


async def follow(gateway, count=1, **fields):
    """So many who ask what is being answered; each is sure to have joined it."""
    (flight,) = flights(gateway)._under_way.values()
    before = flight.followers
    asking = [asyncio.create_task(gateway.chat(**fields)) for _ in range(count)]
    await eventually(lambda: flight.followers == before + count)
    return asking


async def lead(gateway, worker, **fields):
    """The first to ask; its request is with the worker."""
    asked = worker.asked
    leader = asyncio.create_task(gateway.chat(**fields))
    await eventually(lambda: worker.asked > asked)
    return leader


def said(reply):
    """The text of a reply of either form."""
    if reply.body.startswith(b"data:"):
        events = events_of(reply.body)
        assert events[-1] == "[DONE]"
        return text_of(events)
    return orjson.loads(reply.body)["choices"][0]["message"]["content"]


async def cache_of(gateway, reply):
    return (await gateway.timeline(request_id_of(reply)))["cache"]["result"]


# --- one answer for many ----------------------------------------------------------------------------------


async def test_many_who_ask_the_same_at_once_cost_one_answer():
    async with running_engines(1) as (engine,), running_gateway([engine], cache=SERVE) as gateway:
        replies = await asyncio.gather(*(gateway.chat(stream=True, max_tokens=30) for _ in range(8)))
        results = [await cache_of(gateway, it) for it in replies]
        expected = text_of(await undisturbed(engine, **chat_body(stream=True, max_tokens=30)))
        finished = engine.requests_finished
    assert {said(it) for it in replies} == {expected}
    assert sorted(results) == ["joined"] * 7 + ["miss"]
    assert finished == 2  # with the one that was asked directly
    for reply in replies:
        ids = {it["id"] for it in events_of(reply.body)[:-1]}
        assert ids == {f"chatcmpl-{request_id_of(reply)}"}


async def test_one_who_joins_in_mid_answer_has_all_of_it_piece_by_piece():
    async with stage() as (worker, gateway):
        leader = await lead(gateway, worker, stream=True)
        worker.say_words("One", " two")
        (follower,) = await follow(gateway, stream=True, stream_options=USAGE)
        worker.say_words(' "three"\n')
        await asyncio.sleep(0.02)
        worker.say_words(" four")
        await asyncio.sleep(0.02)
        worker.end()
        led, followed = await leader, await follower
        timeline = await gateway.timeline(request_id_of(followed))
    assert said(led) == said(followed) == 'One two "three"\n four'
    assert "usage" not in led.body.decode()
    assert events_of(followed.body)[-2]["usage"] == END[1]["usage"]
    assert len(choices_of(events_of(followed.body))) >= 4
    assert dict(followed.headers)[b"cache-status"] == b"phasewise; fwd=miss; collapsed; detail=joined"
    assert (timeline["outcome"], timeline["attempts"]) == ("succeeded", [])
    assert timeline["cache"] == {"result": "joined", "tokens": 2}
    assert (timeline["finish"], timeline["in"], timeline["out"]) == ("stop", 3, 2)
    assert timeline["ttft"]["unexplained_ms"] == 0


@pytest.mark.parametrize("led_as_stream", [True, False])
@pytest.mark.parametrize("followed_as_stream", [True, False])
async def test_each_has_the_answer_in_the_form_it_asked_for(led_as_stream, followed_as_stream):
    async with stage() as (worker, gateway):
        leader = await lead(gateway, worker, stream=led_as_stream)
        (follower,) = await follow(gateway, stream=followed_as_stream)
        if led_as_stream:
            worker.say_words("One", " two")
            worker.end()
        else:
            worker.say_plainly("One two")
        led, followed = await leader, await follower
    assert said(led) == said(followed) == "One two"
    assert followed.body.startswith(b"data:") is followed_as_stream
    assert worker.asked == 1


async def test_an_answer_that_was_cut_off_is_cut_off_for_all():
    async with running_engines(1) as (engine,), running_gateway([engine], cache=SERVE) as gateway:
        replies = await asyncio.gather(*(gateway.chat(max_tokens=20, ignore_eos=True) for _ in range(3)))
    bodies = [orjson.loads(it.body) for it in replies]
    assert {it["choices"][0]["finish_reason"] for it in bodies} == {"length"}
    assert {it["usage"]["completion_tokens"] for it in bodies} == {20}


async def test_who_asks_afterwards_is_served_what_was_kept():
    async with stage() as (worker, gateway):
        leader = await lead(gateway, worker, stream=True)
        worker.say_words("One", " two")
        worker.end()
        await leader
        later = await eventually(lambda: kept(gateway))
        assert said(later) == "One two"
        assert worker.asked == 1


@pytest.mark.parametrize("stopped_at", ["END", 128_009, None])
@pytest.mark.parametrize("stream", [True, False])
async def test_what_an_answer_stopped_at_is_sent_to_all(stream, stopped_at):
    async with stage() as (worker, gateway):
        leader = await lead(gateway, worker, stream=stream)
        (follower,) = await follow(gateway, stream=stream)
        if stream:
            worker.say_words("One")
            worker.end(stop_reason=stopped_at)
        else:
            worker.say_plainly("One", stop_reason=stopped_at)
        replies = [await leader, await follower]
        replies.append(await eventually(lambda: kept(gateway, stream=stream)))
    last = [choices_of(events_of(it.body))[-1] if stream else orjson.loads(it.body) for it in replies]
    assert [it["choices"][0]["stop_reason"] for it in last] == [stopped_at] * 3


async def kept(gateway, **fields):
    reply = await asyncio.wait_for(gateway.chat(**fields), 0.5)
    return reply if b"hit" in dict(reply.headers)[b"cache-status"] else None


# --- who leaves -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("begun", [True, False])
async def test_an_answer_goes_on_without_the_client_it_was_made_for(begun):
    body = orjson.dumps(chat_body(stream=True))
    async with stage() as (worker, gateway):
        async with connected(gateway) as (reader, writer):
            writer.write(head_of(body))
            writer.write(body)
            await eventually(lambda: worker.asked == 1)
            if begun:
                worker.say_words("One")
                await reader.readuntil(b"One")
            followers = await follow(gateway, 2, stream=True)
        (flight,) = flights(gateway)._under_way.values()
        await eventually(lambda: flight._leader.left)
        worker.say_words(*(["One", " two"][begun:]), " three")
        worker.end()
        replies = await asyncio.gather(*followers)
    assert [said(it) for it in replies] == ["One two three"] * 2
    assert worker.asked == 1


async def test_when_the_last_one_has_left_the_request_is_aborted():
    body = orjson.dumps(chat_body(stream=True))
    async with stage() as (worker, gateway):
        async with connected(gateway) as (_, writer):
            writer.write(head_of(body) + body)
            await eventually(lambda: worker.asked == 1)
            followers = await follow(gateway, 2, stream=True)
            followers[0].cancel()
        (flight,) = flights(gateway)._under_way.values()
        await eventually(lambda: flight.followers == 1 and flight._leader.left)
        assert gateway.under_way == 1
        followers[1].cancel()
        await eventually(lambda: not gateway.under_way and not len(flights(gateway)))
        await asyncio.gather(*followers, return_exceptions=True)


async def test_a_leader_that_does_not_read_holds_nobody_up():
    words = [f" {number:06}" * 50 for number in range(400)]
    body = orjson.dumps(chat_body(stream=True))
    async with stage() as (worker, gateway), connected(gateway) as (_, writer):
        writer.write(head_of(body) + body)
        await eventually(lambda: worker.asked == 1)
        worker.say_words(*words[:200])
        await asyncio.sleep(0.05)
        (follower,) = await follow(gateway, stream=True)
        worker.say_words(*words[200:])
        worker.end()
        assert said(await asyncio.wait_for(follower, 60)) == "".join(words)
        writer.transport.abort()
        await eventually(lambda: not gateway.under_way)


# --- who breaks -------------------------------------------------------------------------------------------


async def test_all_go_on_when_the_worker_dies_in_mid_answer():
    body = chat_body(stream=True, max_tokens=30, ignore_eos=True)
    async with running_engines(2) as pair, running_gateway(pair, cache=SERVE) as gateway:
        expected = text_of(await undisturbed(pair[1], **body))
        pair[0].inject("cut", after_tokens=7, times=1)
        asking = (gateway.fetch("POST", "/v1/chat/completions", body) for _ in range(4))
        replies = await asyncio.gather(*asking)
        timelines = [await gateway.timeline(request_id_of(it)) for it in replies]
    assert [said(it) for it in replies] == [expected] * 4
    assert sorted(len(it["attempts"]) for it in timelines) == [0, 0, 0, 2]


@pytest.mark.parametrize("seed", range(4))
async def test_whoever_stays_has_the_whole_answer_whoever_leaves_and_whatever_breaks(seed):
    dice = Random(seed)  # noqa: S311 - no secret
    body = chat_body(max_tokens=40, ignore_eos=True)

    async def ask(gateway, after_s, stays_s, stream):
        await asyncio.sleep(after_s)
        asking = gateway.fetch("POST", "/v1/chat/completions", {**body, "stream": stream})
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(asking, stays_s)

    async with running_engines(2) as pair, running_gateway(pair, cache=SERVE) as gateway:
        expected = text_of(await undisturbed(pair[1], **body, stream=True))
        dice.choice(pair).inject("cut", after_tokens=dice.randrange(1, 30), times=1)
        people = [
            (dice.uniform(0, 0.05), dice.choice([dice.uniform(0, 0.05), 30]), dice.random() < 0.7)
            for _ in range(16)
        ]
        replies = await asyncio.gather(*(ask(gateway, *it) for it in people))
        await eventually(lambda: not gateway.under_way and not len(flights(gateway)))
    stayed = [it for it, (_, stays_s, _) in zip(replies, people, strict=True) if stays_s == 30]
    assert [said(it) for it in stayed] == [expected] * len(stayed)


async def test_who_has_some_of_an_answer_that_failed_for_good_has_it_taken_up():
    body = chat_body(stream=True, max_tokens=30, ignore_eos=True)
    async with running_engines(2) as pair, running_gateway(pair, cache=SERVE) as gateway:
        expected = text_of(await undisturbed(pair[1], **body))
        for engine in pair:
            engine.inject("cut", after_tokens=7, times=1)
        asking = (gateway.fetch("POST", "/v1/chat/completions", body) for _ in range(3))
        replies = await asyncio.gather(*asking)
        timelines = [await gateway.timeline(request_id_of(it)) for it in replies]
    failed = [it for it in replies if "error" in events_of(it.body)[-1]]
    assert [said(it) for it in replies if it not in failed] == [expected] * 2
    followed = [it for it in timelines if it["cache"]["result"] == "joined"]
    assert [[each["kind"] for each in it["attempts"]] for it in followed] == [["resumed"]] * 2
    assert all(it["ttft"]["unexplained_ms"] == 0 for it in followed)


async def test_who_had_nothing_yet_of_an_answer_that_failed_asks_again_one_for_all():
    async with stage() as (worker, gateway):
        leader = await lead(gateway, worker, stream=True)
        followers = await follow(gateway, 3, stream=True)
        for attempt in (1, 2):
            await eventually(lambda attempt=attempt: worker.asked == attempt)
            worker.writers[-1].close()
        assert (await leader).status == 503
        await eventually(lambda: worker.asked == 3)
        worker.say_words("One")
        worker.end()
        replies = await asyncio.gather(*followers)
        results = [await cache_of(gateway, it) for it in replies]
    assert [said(it) for it in replies] == ["One"] * 3
    assert sorted(results) == ["joined", "joined", "miss"]
    assert worker.asked == 3


async def test_of_a_broken_answer_streams_end_and_plain_replies_ask_again():
    async with stage(resume="off") as (worker, gateway):
        leader = await lead(gateway, worker, stream=True)
        (streamed,) = await follow(gateway, stream=True)
        (plain,) = await follow(gateway)
        worker.say_words("One")
        await asyncio.sleep(0.05)
        worker.writers[-1].close()
        for reply in (await leader, await streamed):
            assert events_of(reply.body)[-1]["error"]["code"] == "stream_not_resumable"
        await eventually(lambda: worker.asked == 2)
        worker.say_plainly("One two")
        assert said(await plain) == "One two"
        timeline = await gateway.timeline(request_id_of(await streamed))
    assert (timeline["outcome"], timeline["why"]) == ("failed", "not_resumable")


async def test_answers_of_more_than_text_are_not_shared():
    thought = {"choices": [{"index": 0, "delta": {"reasoning": "hm"}}]}
    async with stage() as (worker, gateway):
        leader = await lead(gateway, worker, stream=True)
        followers = await follow(gateway, 2, stream=True)
        worker.say(thought)
        await eventually(lambda: worker.asked == 3)
        for number in range(3):
            worker.say(thought, to=number)
            worker.say_words("One", to=number)
            worker.end(to=number)
        replies = await asyncio.gather(leader, *followers)
        assert [said(it) for it in replies] == ["One"] * 3
        # From the first of them nobody waits for such a model.
        again = [await lead(gateway, worker, stream=True), await lead(gateway, worker, stream=True)]
        for number in (3, 4):
            worker.end(to=number)
        await asyncio.gather(*again)


async def test_a_reply_that_nobody_can_read_is_not_shared():
    page = b"<html>please wait</html>"
    async with stage() as (worker, gateway):
        leader = await lead(gateway, worker)
        (follower,) = await follow(gateway)
        worker.writers[-1].write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(page) + page)
        assert (await leader).body == page
        await eventually(lambda: worker.asked == 2)
        worker.say_plainly("One")
        assert said(await follower) == "One"


async def test_a_joined_answer_is_reported_without_its_near_match():
    near = CacheNote(CacheResult.EXPLORED, "new_change", similarity=0.9, embed_s=0.002)
    async with stage() as (worker, gateway):
        lookups, led = [], asyncio.Event()

        async def look_up(lookup):
            lookups.append(lookup)
            if len(lookups) == 1:
                await led.wait()
                lookup.note = near

        gateway.app.gateway.pipeline._driver.found._cache.look_up = look_up
        follower = asyncio.create_task(gateway.chat())
        await eventually(lambda: len(lookups) == 1)
        leader = await lead(gateway, worker)
        (flight,) = flights(gateway)._under_way.values()
        led.set()
        await eventually(lambda: flight.followers == 1)
        worker.say_plainly("One")
        await leader
        timeline = await gateway.timeline(request_id_of(await follower))
    assert timeline["cache"]["result"] == "joined"
    assert timeline["cache"].keys().isdisjoint({"why", "near"})


# --- how long one waits -----------------------------------------------------------------------------------

PATIENCE = (SloClass(name="fast", max_wait_s=0.3), SloClass(name="batch", max_wait_s=60))
IMPATIENT = tuple(ApiKey(sha256=key_sha256(it.name), slo_class=it.name) for it in PATIENCE)


@contextlib.asynccontextmanager
async def queue():
    """One whose client_timeouts is long leads, and waits for the one place that another has."""
    worker = Worker()
    async with listening(worker.answer) as config:
        one_place = config.model_copy(update={"slots": 1})
        options = {"cache": SERVE, "api_keys": IMPATIENT, "slo_classes": PATIENCE}
        async with running_gateway([one_place], **options) as gateway:
            elsewhere = [{"role": "user", "content": "What is asked by nobody else?"}]
            busy = await lead(gateway, worker, headers=bearer("batch"), messages=elsewhere)
            leader = asyncio.create_task(gateway.chat(headers=bearer("batch")))
            await eventually(lambda: len(flights(gateway)) == 2)
            yield worker, gateway, busy, leader


async def test_a_follower_waits_for_a_slot_no_longer_than_it_would_by_itself():
    async with queue() as (worker, gateway, busy, leader):
        rejected = await asyncio.wait_for(gateway.chat(headers=bearer("fast")), 60)
        assert rejected.status == 503
        assert b"joined" not in dict(rejected.headers)[b"cache-status"]
        worker.say_plainly("Zero")
        await busy
        await eventually(lambda: worker.asked == 2)
        worker.say_plainly("One")
        assert said(await leader) == "One"


async def test_a_follower_waits_as_long_as_a_worker_takes():
    async with queue() as (worker, gateway, busy, leader):
        worker.say_plainly("Zero")
        await busy
        await eventually(lambda: worker.asked == 2)
        follower = asyncio.create_task(gateway.chat(headers=bearer("fast")))
        await asyncio.sleep(0.5)
        worker.say_plainly("One")
        assert [said(await it) for it in (leader, follower)] == ["One", "One"]
        assert worker.asked == 2


# --- who may not join -------------------------------------------------------------------------------------

KEYS = {name: ApiKey(sha256=key_sha256(name), tenant=name) for name in ("one", "two")}


def bearer(name):
    return [(b"authorization", b"Bearer " + name.encode())]


async def test_tenants_never_join_each_other():
    async with stage(api_keys=tuple(KEYS.values())) as (worker, gateway):
        leaders = [await lead(gateway, worker, stream=True, headers=bearer(name)) for name in KEYS]
        for number, word in enumerate(("One", "Two")):
            worker.say_words(word, to=number)
            worker.end(to=number)
        assert [said(await it) for it in leaders] == ["One", "Two"]


async def test_one_of_higher_priority_does_not_stand_behind_one_that_waits():
    keys = {"one": ApiKey(sha256=key_sha256("one")), "two": ApiKey(sha256=key_sha256("two"), priority=5)}
    async with stage(api_keys=tuple(keys.values())) as (worker, gateway):
        leader = await lead(gateway, worker, headers=bearer("one"))
        urgent = await lead(gateway, worker, headers=bearer("two"))
        (patient,) = await follow(gateway, headers=bearer("one"))
        worker.say_plainly("One", to=0)
        worker.say_plainly("Two", to=1)
        assert [said(await it) for it in (leader, urgent, patient)] == ["One", "Two", "One"]


async def test_one_over_its_keys_limit_does_not_join():
    key = ApiKey(sha256=key_sha256("one"), tenant="one", max_concurrent=1)
    async with stage(api_keys=(key,)) as (worker, gateway):
        leader = await lead(gateway, worker, stream=True, headers=bearer("one"))
        rejected = await gateway.chat(stream=True, headers=bearer("one"))
        (flight,) = flights(gateway)._under_way.values()
        assert (rejected.status, flight.followers) == (429, 0)
        worker.say_words("One")
        worker.end()
        assert said(await leader) == "One"


@pytest.mark.parametrize(
    ("cache", "headers"),
    [
        (CacheConfig(mode="shadow"), ()),
        (SERVE, [(b"cache-control", b"no-cache")]),
        (SERVE, [(b"cache-control", b"no-store")]),
        (SERVE, [(b"x-phasewise-cache-namespace", b"another")]),
    ],
)
async def test_nobody_joins_who_is_to_have_an_answer_of_its_own(cache, headers):
    async with stage(cache) as (worker, gateway):
        leaders = [await lead(gateway, worker, stream=True)]
        leaders.append(await lead(gateway, worker, stream=True, headers=headers))
        for number in (0, 1):
            worker.say_words("One", to=number)
            worker.end(to=number)
        await asyncio.gather(*leaders)
    assert worker.asked == 2
