#!/usr/bin/env python3
"""Traffic for the scenes next to this file (standard library only, asyncio).

  poisson   requests arrive at random at --rate per second (or evenly with --even)
  users     closed-loop users: ask, read the answer, think, ask again; --turns keeps a conversation's history
  desk      closed-loop users whose prompts contain one of --docs long texts; --stamp puts a changing line before or behind it
  readers   closed-loop users who read slowly (--hold seconds after every --every tokens), with log probabilities

Every mode can have --bg-rate (short chats at random) and --doc-every (a long document now and then) beside it.
"""
import argparse
import asyncio
import json
import os
import random
import signal
import socket
import sys
import time

MODEL = "smollm2-135m"
WORDS = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city community name president team minute idea kid body information "
    "back parent face others level office door health person art war history party result change morning reason research "
    "girl guy moment air teacher force education foot boy age policy music market sense nation plan college interest "
    "death experience effect use class control field development role effort rate heart drug show leader light voice "
    "wife police mind price report decision son view relationship town road arm difference value building action model "
    "season society tax director position player record paper space ground form event official matter center couple "
    "site project activity star table need court oil situation cost industry figure street image phone data picture "
    "practice piece land product doctor wall patient worker news test movie north love support technology step baby "
    "computer type attention film tree source organization hair look window culture chance brother energy period course "
    "summer plant opportunity term letter condition choice rule south floor campaign material population call economy "
    "hospital church risk fire future bank west sport board subject officer rest behavior performance top goal second "
    "bed order author blood agency nature color store sound movement page race concern series language response animal "
    "factor article east artist scene stock career treatment approach size dog fund media sign thought list individual "
    "quality pressure answer resource meeting disease success cup amount ability staff character growth loss degree "
    "attack region television box training trade deal election feeling standard bill message analysis benefit sex "
    "lawyer section glass skill sister professor operation crime stage authority design knowledge gun station strategy "
    "truth song example environment leg dark public various rather laugh guess executive prove hang entire rock forget "
    "claim remove manager enjoy network legal religious cold final main science green memory card seat cell trial "
    "expert spring firm radio visit management avoid imagine tonight huge ball finish theory impact respond statement "
    "maintain charge popular traditional onto reveal direction weapon employee cultural contain peace pain apply play "
    "measure wide shake fly interview manage chair fish particular camera structure politics perform bit weight suddenly"
).split()


def text(n):
    out, left = [], n
    while left > 0:
        k = min(left, random.randint(6, 14))
        out.append(" ".join(random.choice(WORDS) for _ in range(k)).capitalize() + ".")
        left -= k
    return " ".join(out)


def pick(span):
    return random.uniform(*span)


def ipick(span):
    return random.randint(int(span[0]), int(span[1]))


def span(s):
    lo, _, hi = s.partition("-")
    return float(lo), float(hi or lo)


class Log:
    def __init__(self, path):
        self.f = open(path, "w", buffering=1)
        self.open = {}
        self.closed = False

    def begin(self, r):
        self.open[id(r)] = r

    def done(self, r):
        if self.open.pop(id(r), None) is not None and not self.closed:
            self.f.write(json.dumps(r.row()) + "\n")

    def close(self):
        if self.closed:
            return
        self.closed = True
        for r in list(self.open.values()):
            if r.last is not None:
                r.worst = max(r.worst, time.time() - r.last)
            row = r.row()
            row.pop("aborted", None)
            row["open"] = True
            self.f.write(json.dumps(row) + "\n")
        self.f.flush()
        self.f.close()


class Request:
    def __init__(self):
        self.t = time.time()
        self.first = self.last = None
        self.worst = 0.0
        self.chunks = 0
        self.usage = None
        self.err = None
        self.aborted = False
        self.end = None
        self.parts = []

    def token(self, piece):
        now = time.time()
        if self.first is None:
            self.first = now
        else:
            self.worst = max(self.worst, now - self.last)
        self.last = now
        self.chunks += 1
        self.parts.append(piece)

    def row(self):
        if self.err:
            return {"t": self.t, "err": self.err}
        n = self.usage or self.chunks
        row = {"t": self.t, "n": n, "worst": round(self.worst, 4)}
        if self.first is not None:
            row["ttft"] = round(self.first - self.t, 4)
            row["tpot"] = round((self.last - self.first) / max(1, n - 1), 5)
        if self.end is not None:
            row["end"] = self.end
        if self.aborted:
            row["aborted"] = True
        return row


class Body:
    """Takes raw bytes after the head, gives the body (plain or chunked)."""

    def __init__(self, chunked):
        self.chunked, self.raw, self.left, self.over = chunked, b"", 0, False

    def feed(self, data):
        if not self.chunked:
            return data
        self.raw += data
        out = b""
        while True:
            if self.left > 0:
                take = self.raw[: self.left]
                self.raw = self.raw[len(take):]
                self.left -= len(take)
                out += take
                if self.left:
                    return out
                self.left = -2
            if self.left < 0:  # the line end behind a chunk
                cut = min(-self.left, len(self.raw))
                self.raw = self.raw[cut:]
                self.left += cut
                if self.left:
                    return out
            line, nl, rest = self.raw.partition(b"\r\n")
            if not nl:
                return out
            self.raw = rest
            self.left = int(line.split(b";")[0] or b"0", 16)
            if self.left == 0:
                self.over = True
                return out


class Client:
    def __init__(self, a, log):
        self.a, self.log = a, log
        self.until = time.time() + a.dur
        self.tasks = set()

    def spawn(self, coro):
        task = asyncio.ensure_future(coro)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def running(self):
        return time.time() < self.until

    async def ask(self, messages, out, cancel_after=None, hold=0.0, every=0, logprobs=False):
        r = Request()
        self.log.begin(r)
        try:
            if cancel_after is None:
                await self.stream(r, messages, out, hold, every, logprobs)
            else:
                try:
                    await asyncio.wait_for(self.stream(r, messages, out, hold, every, logprobs), cancel_after)
                except asyncio.TimeoutError:
                    r.aborted = True
        except asyncio.CancelledError:
            raise
        except Exception as e:  # noqa: BLE001
            r.err = f"{type(e).__name__}: {e}"[:200]
        r.end = time.time()
        self.log.done(r)
        return r

    async def stream(self, r, messages, out, hold, every, logprobs):
        what = {
            "model": MODEL, "messages": messages, "stream": True, "ignore_eos": True, "max_tokens": out,
            "temperature": 0.8, "stream_options": {"include_usage": True},
        }
        if logprobs:
            what |= {"logprobs": True, "top_logprobs": 20}
        body = json.dumps(what).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{self.a.port}\r\nContent-Type: application/json\r\n"
            f"Accept: text/event-stream\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        ).encode()
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setblocking(False)
        slow = hold > 0
        if slow:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        writer = None
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.a.port))
            reader, writer = await asyncio.open_connection(sock=sock, limit=2048 if slow else 65536)
            writer.write(head + body)
            await writer.drain()
            raw = b""
            while b"\r\n\r\n" not in raw:
                data = await reader.read(2048 if slow else 65536)
                if not data:
                    raise ConnectionError("closed before an answer")
                raw += data
            top, _, rest = raw.partition(b"\r\n\r\n")
            status = int(top.split(None, 2)[1])
            if status != 200:
                r.err = f"status {status}"
                return
            decode = Body(b"transfer-encoding: chunked" in top.lower())
            pending, since_hold, complete = b"", 0, False
            data = rest
            while True:
                pending += decode.feed(data) if data else b""
                while b"\n" in pending:
                    line, _, pending = pending.partition(b"\n")
                    line = line.strip()
                    if not line.startswith(b"data:"):
                        continue
                    payload = line[5:].strip()
                    if payload == b"[DONE]":
                        complete = True
                        break
                    event = json.loads(payload)
                    if "error" in event:
                        r.err = "error event: " + str(event["error"])[:150]
                        return
                    if event.get("usage"):
                        r.usage = event["usage"].get("completion_tokens") or r.usage
                    choices = event.get("choices") or []
                    piece = choices[0].get("delta", {}).get("content") if choices else None
                    if piece:
                        r.token(piece)
                        since_hold += 1
                        if slow and since_hold >= every:
                            since_hold = 0
                            await asyncio.sleep(hold)  # busy elsewhere; nothing is read meanwhile
                if complete or decode.over:
                    break
                data = await reader.read(2048 if slow else 65536)
                if not data:
                    break
            if not complete:
                r.err = "the stream was cut"
        finally:
            if writer is not None:
                writer.transport.abort()
            else:
                sock.close()

    # -- modes

    def short(self, words):
        return [{"role": "user", "content": text(ipick(words))}]

    async def poisson(self, rate, words, out, even=False, first_at_once=True):
        """An open loop; the first one comes at once."""
        nxt = time.time() + (0 if first_at_once else random.expovariate(rate))
        while self.running():
            await asyncio.sleep(max(0.0, nxt - time.time()))
            self.spawn(self.ask(self.short(words), ipick(out)))
            nxt += 1 / rate if even else random.expovariate(rate)

    async def user(self, i):
        a = self.a
        await asyncio.sleep(random.uniform(0, a.ramp))
        history, turn = [], 0
        first = True
        while self.running():
            if turn >= a.turns:
                history, turn = [], 0
            history.append({"role": "user", "content": text(ipick(a.words))})
            out = ipick(a.out)
            if first:  # not all in step
                out = max(4, int(out * random.uniform(0.2, 1.0)))
                first = False
            leave = pick(a.cancel_after) if random.random() < a.cancel else None
            r = await self.ask(history, out, cancel_after=leave)
            turn += 1
            if r.err or r.aborted:
                history, turn = [], 0
            else:
                history.append({"role": "assistant", "content": "".join(r.parts)})
            await asyncio.sleep(1.0 if r.err else pick(a.think))

    async def worker(self, i, docs, counter):
        a = self.a
        await asyncio.sleep(i * a.ramp / max(1, a.users))
        while self.running():
            doc = docs[counter[0] % len(docs)]
            counter[0] += 1
            question = text(ipick(a.words))
            stamp = "Request %s, %s, agent %d." % (
                "".join(random.choice("0123456789abcdef") for _ in range(random.choice((8, 12, 16)))),
                time.strftime("%Y-%m-%d %H:%M:%S"), random.randint(1, 999))
            if a.stamp == "front":
                system, ask = stamp + "\n" + doc, question
            elif a.stamp == "end":
                system, ask = doc, question + "\n" + stamp
            else:
                system, ask = doc, question
            r = await self.ask([{"role": "system", "content": system}, {"role": "user", "content": ask}], ipick(a.out))
            await asyncio.sleep(1.0 if r.err else pick(a.think))

    async def slow_reader(self, i):
        a = self.a
        await asyncio.sleep(random.uniform(0, a.ramp))
        while self.running():
            r = await self.ask(self.short(a.words), ipick(a.out), hold=a.hold, every=a.every, logprobs=True)
            await asyncio.sleep(1.0 if r.err else pick(a.think))

    async def documents(self):
        a = self.a
        nxt = time.time() + 2.0
        while self.running():
            await asyncio.sleep(max(0.0, nxt - time.time()))
            self.spawn(self.ask([{"role": "user", "content": "Classify this document.\n" + text(ipick(a.doc_words))}],
                                ipick(a.doc_out)))
            nxt += a.doc_every * random.uniform(0.85, 1.15)

    async def run(self):
        a = self.a
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for s in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(s, stop.set)
        if a.mode == "poisson":
            self.spawn(self.poisson(a.rate, a.words, a.out, a.even))
        elif a.mode == "users":
            for i in range(a.users):
                self.spawn(self.user(i))
        elif a.mode == "desk":
            docs = [text(a.prefix_words) for _ in range(a.docs)]
            counter = [0]
            for i in range(a.users):
                self.spawn(self.worker(i, docs, counter))
        elif a.mode == "readers":
            for i in range(a.users):
                self.spawn(self.slow_reader(i))
        if a.bg_rate > 0:
            self.spawn(self.poisson(a.bg_rate, a.bg_words, a.bg_out, first_at_once=False))
        if a.doc_every > 0:
            self.spawn(self.documents())
        try:
            await asyncio.wait_for(stop.wait(), max(0.0, self.until - time.time()))
        except asyncio.TimeoutError:
            pass
        self.log.close()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("mode", choices=("poisson", "users", "desk", "readers"))
    p.add_argument("--port", type=int, required=True)
    p.add_argument("--dur", type=float, required=True)
    p.add_argument("--log", required=True)
    p.add_argument("--rate", type=float, default=0.4)
    p.add_argument("--even", action="store_true")
    p.add_argument("--users", type=int, default=3)
    p.add_argument("--think", type=span, default=(1.0, 3.0))
    p.add_argument("--turns", type=int, default=1)
    p.add_argument("--words", type=span, default=(30, 90))
    p.add_argument("--out", type=span, default=(20, 40))
    p.add_argument("--ramp", type=float, default=1.0, help="users begin within this many seconds")
    p.add_argument("--cancel", type=float, default=0.0)
    p.add_argument("--cancel-after", type=span, default=(0.6, 1.6))
    p.add_argument("--docs", type=int, default=1)
    p.add_argument("--prefix-words", type=int, default=500)
    p.add_argument("--stamp", choices=("none", "front", "end"), default="none")
    p.add_argument("--hold", type=float, default=0.0)
    p.add_argument("--every", type=int, default=6)
    p.add_argument("--bg-rate", type=float, default=0.0)
    p.add_argument("--bg-words", type=span, default=(20, 70))
    p.add_argument("--bg-out", type=span, default=(12, 25))
    p.add_argument("--doc-every", type=float, default=0.0)
    p.add_argument("--doc-words", type=span, default=(2400, 3200))
    p.add_argument("--doc-out", type=span, default=(4, 6))
    a = p.parse_args()
    log = Log(a.log)
    try:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        loop.run_until_complete(Client(a, log).run())  # open streams are left: the process ends now
    finally:
        log.close()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
