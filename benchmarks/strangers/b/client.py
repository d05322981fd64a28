#!/usr/bin/env python3
"""Traffic of our product teams against an OpenAI chat endpoint. Standard library only.

client.py KIND [options] --port PORT --dur SECONDS --log FILE

KIND: chat   conversations that grow turn by turn
      rag    a question behind a long document (--doc words, --docs different ones in turn)
      code   completions with tiny outputs
      batch  jobs, each an instruction with its own text
      agent  tool loops: a long tool manual (--doc words) in the system message, --salt where the session id stands
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
import uuid

WORDS = ("time year people way day man thing woman life child world school state family student group country problem "
         "hand part place case week company system program question work government number night point home water room "
         "mother area money story fact month lot right study book eye job word business issue side kind head house "
         "service friend father power hour game line end member law car city community name president team minute idea "
         "body information back parent face others level office door health person art war history party result change "
         "morning reason research girl guy moment air teacher force education the of and to in is that for it as was "
         "with be by on not he his but at are this have from or had an they which one you were all her she there would "
         "their we him been has when who will no more if out so up said what its about than into them can only other "
         "new some could these two may first then do any like my now over such our").split()


def pair(text):
    parts = [float(x) for x in str(text).split(",")]
    return (parts[0], parts[-1])


def arguments():
    p = argparse.ArgumentParser()
    p.add_argument("kind", choices=["chat", "rag", "code", "batch", "agent"])
    p.add_argument("--port", type=int, required=True)
    p.add_argument("--dur", type=float, required=True)
    p.add_argument("--log", required=True)
    p.add_argument("--seed", type=int, default=7, help="of arrivals and lengths; texts are new in every run")
    # pace: closed loop (--users, --think), open (--rate, --arrivals) or bursts (--burst, --every)
    p.add_argument("--users", type=int, default=0)
    p.add_argument("--think", type=pair, default=(1.0, 1.0))
    p.add_argument("--rate", type=float, default=0.0)
    p.add_argument("--arrivals", choices=["even", "poisson"], default="even")
    p.add_argument("--burst", type=int, default=0)
    p.add_argument("--every", type=float, default=15.0)
    # size, in words (about one token each)
    p.add_argument("--prompt", type=pair, default=(40, 40))
    p.add_argument("--out", type=pair, default=(30, 30))
    p.add_argument("--doc", type=int, default=0)
    p.add_argument("--docs", type=int, default=1)
    p.add_argument("--turns", type=int, default=5)
    p.add_argument("--salt", choices=["none", "start", "end"], default="none")
    # habits
    p.add_argument("--stuck", type=int, default=0, help="this many users send a history beyond the context, again and again")
    p.add_argument("--stuck-words", type=int, default=9500)
    p.add_argument("--cancel-every", type=int, default=0)
    p.add_argument("--cancel-after", type=int, default=3, help="tokens")
    p.add_argument("--away", type=float, default=0.0, help="the client stops reading for this long in each answer")
    p.add_argument("--away-after", type=float, default=1.5, help="seconds after the first token")
    p.add_argument("--logprobs", type=int, default=0)
    p.add_argument("--index-every", type=float, default=0.0, help="an indexing job beside it posts a long text this often")
    p.add_argument("--index-words", type=int, default=3000)
    p.add_argument("--index-out", type=int, default=2)
    return p.parse_args()


class Broken(Exception):
    pass


class Reply:
    """An HTTP/1.1 reply as it comes in: status, then lines of the body (chunked or not)."""

    def __init__(self):
        self.raw = b""
        self.status = None
        self.chunked = False
        self.left = None  # bytes of a body with a length
        self.text = b""
        self.over = False
        self.in_chunk = 0  # bytes that the current chunk still has

    def feed(self, data):
        self.raw += data
        if self.status is None:
            cut = self.raw.find(b"\r\n\r\n")
            if cut < 0:
                return
            head, self.raw = self.raw[:cut].decode("latin-1"), self.raw[cut + 4:]
            lines = head.split("\r\n")
            self.status = int(lines[0].split()[1])
            for line in lines[1:]:
                name, _, value = line.partition(":")
                name, value = name.strip().lower(), value.strip().lower()
                if name == "transfer-encoding" and "chunked" in value:
                    self.chunked = True
                if name == "content-length":
                    self.left = int(value)
        if not self.chunked:
            self.text += self.raw
            if self.left is not None:
                self.left -= len(self.raw)
                self.over = self.left <= 0
            self.raw = b""
            return
        while self.raw and not self.over:
            if self.in_chunk:
                part = self.raw[:self.in_chunk]
                self.text += part
                self.raw = self.raw[len(part):]
                self.in_chunk -= len(part)
                continue
            if self.raw.startswith(b"\r\n"):
                self.raw = self.raw[2:]
                continue
            cut = self.raw.find(b"\r\n")
            if cut < 0:
                return
            size = int(self.raw[:cut].split(b";")[0], 16)
            self.raw = self.raw[cut + 2:]
            self.in_chunk = size
            self.over = size == 0

    def lines(self):
        *whole, self.text = self.text.split(b"\n")
        return [line.strip() for line in whole]


class Log:
    def __init__(self, path):
        self.file = open(path, "w")
        self.open = {}

    def write(self, row):
        self.file.write(json.dumps(row) + "\n")
        self.file.flush()

    def close(self):
        for row in list(self.open.values()):
            self.write({**row, "open": True})
        self.open.clear()
        self.file.close()


class Client:
    def __init__(self, a):
        self.a = a
        self.sizes = random.Random(a.seed)
        self.texts = random.Random(os.urandom(16))
        self.log = Log(a.log)
        self.sent = 0
        self.tasks = set()
        self.manuals = [self.prose(a.doc) for _ in range(max(1, a.docs))] if a.doc else []

    # texts

    def prose(self, words):
        out, left = [], int(words)
        while left > 0:
            n = min(left, self.texts.randint(9, 14))
            out.append(" ".join(self.texts.choice(WORDS) for _ in range(n)).capitalize() + ".")
            left -= n
        return " ".join(out)

    def size(self, bounds):
        return round(self.sizes.uniform(*bounds))

    def messages(self, number, history=None, stuck=False):
        a, kind = self.a, self.a.kind
        own = self.prose(self.size(a.prompt))
        if stuck:
            return [{"role": "user", "content": self.prose(a.stuck_words)}]
        if kind == "chat":
            return list(history or []) + [{"role": "user", "content": own}]
        if kind == "code":
            return [{"role": "user", "content": f"Complete the code: {own} return"}]
        if kind == "batch" or not self.manuals:
            return [{"role": "user", "content": f"{own} Summarize this."}]
        manual = self.manuals[number % len(self.manuals)]
        mark = f"Session {uuid.uuid4().hex} started at {time.time():.6f}."
        if a.salt == "start":
            manual = f"{mark} {manual}"
        if a.salt == "end":
            own = f"{own} {mark}"
        return [{"role": "system", "content": manual}, {"role": "user", "content": own}]

    # one request

    async def call(self, messages, tokens, cancel_after=0, away=0.0):
        """Send one request, log it, and return the text (None if it failed or was ended)."""
        body = {"model": "smollm2-135m", "stream": True, "ignore_eos": True, "max_tokens": int(tokens),
                "temperature": 0.8, "stream_options": {"include_usage": True}, "messages": messages}
        if self.a.logprobs:
            body.update(logprobs=True, top_logprobs=self.a.logprobs)
        data = json.dumps(body).encode()
        head = (f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{self.a.port}\r\nContent-Type: application/json\r\n"
                f"Accept: text/event-stream\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n").encode()
        loop = asyncio.get_running_loop()
        row = {"t": time.time()}
        start = time.monotonic()
        key = object()
        self.log.open[key] = row
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setblocking(False)
        first = last = None
        worst, chunks, usage, text = 0.0, 0, None, []
        went_away = False
        try:
            if away:  # a phone on a mobile network: small segments, a small window
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1400)
            else:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(sock, ("127.0.0.1", self.a.port))
            await loop.sock_sendall(sock, head + data)
            reply, done = Reply(), False
            while not (done or reply.over):
                got = await loop.sock_recv(sock, 4096 if away else 65536)
                if not got:
                    break
                reply.feed(got)
                if reply.status is None:
                    continue
                if reply.status != 200:
                    raise Broken(f"HTTP {reply.status}")
                now = time.monotonic()
                for line in reply.lines():
                    if not line.startswith(b"data:"):
                        continue
                    payload = line[5:].strip()
                    if payload == b"[DONE]":
                        done = True
                        continue
                    event = json.loads(payload)
                    if "error" in event:
                        raise Broken(f"stream error {str(event['error'])[:120]}")
                    if event.get("usage"):
                        usage = event["usage"].get("completion_tokens")
                    for choice in event.get("choices") or []:
                        content = (choice.get("delta") or {}).get("content")
                        if not content:
                            continue
                        text.append(content)
                        chunks += 1
                        if first is None:
                            first = now
                        else:
                            worst = max(worst, now - last)
                        last = now
                        row.update(self.figures(start, first, last, worst, chunks))
                if cancel_after and chunks >= cancel_after and not done:
                    self.log.write({**row, "aborted": True, "end": time.time()})
                    return None
                if away and not went_away and first is not None and now - first >= self.a.away_after:
                    went_away = True
                    await asyncio.sleep(away)
            if not done:
                raise Broken("ended early")
            if first is None:
                raise Broken("no content")
            self.log.write({"t": row["t"], **self.figures(start, first, last, worst, usage or chunks), "end": time.time()})
            return "".join(text)
        except (OSError, ValueError, Broken) as e:
            self.log.write({"t": row["t"], "err": str(e) or type(e).__name__, "end": time.time()})
            return None
        except asyncio.CancelledError:
            self.log.write({**row, "open": True, "end": time.time()})
            raise
        finally:
            self.log.open.pop(key, None)
            sock.close()

    @staticmethod
    def figures(start, first, last, worst, n):
        return {"ttft": round(first - start, 4), "tpot": round((last - first) / (n - 1), 5) if n > 1 else 0.0,
                "worst": round(worst, 4), "n": n}

    # paces

    async def request(self, history=None, stuck=False):
        a, number = self.a, self.sent
        self.sent += 1
        cancel = a.cancel_after if a.cancel_every and number % a.cancel_every == a.cancel_every - 1 else 0
        messages = self.messages(number, history, stuck)
        text = await self.call(messages, self.size(a.out), cancel, a.away)
        return messages, text

    async def user(self, index):
        a = self.a
        history, turns = [], 0
        while True:
            messages, text = await self.request(history, stuck=index < a.stuck)
            if text is None or a.kind != "chat":
                history, turns = [], 0
            else:
                history, turns = messages + [{"role": "assistant", "content": text}], turns + 1
                if turns >= a.turns:
                    history, turns = [], 0
            pause = self.sizes.uniform(*a.think)
            await asyncio.sleep(max(pause, 0.5) if text is None else pause)

    def spawn(self, coro):
        task = asyncio.get_running_loop().create_task(coro)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def open_loop(self):
        a, due = self.a, time.monotonic()
        while True:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            self.spawn(self.request())
            due += self.sizes.expovariate(a.rate) if a.arrivals == "poisson" else self.sizes.uniform(0.7, 1.3) / a.rate

    async def bursts(self):
        due = time.monotonic()
        while True:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            for _ in range(self.a.burst):
                self.spawn(self.request())
            due += self.a.every

    async def indexer(self):
        due = time.monotonic()
        while True:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            text = self.prose(self.a.index_words)
            self.spawn(self.call([{"role": "user", "content": f"{text} List the keywords."}], self.a.index_out))
            due += self.a.index_every

    async def run(self):
        a = self.a
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for sig in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sig, stop.set)
        for index in range(a.users):
            self.spawn(self.user(index))
        if a.rate:
            self.spawn(self.open_loop())
        if a.burst:
            self.spawn(self.bursts())
        if a.index_every:
            self.spawn(self.indexer())
        try:
            await asyncio.wait_for(stop.wait(), a.dur)
        except asyncio.TimeoutError:
            pass
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.log.close()


if __name__ == "__main__":
    asyncio.run(Client(arguments()).run())
    sys.exit(0)
