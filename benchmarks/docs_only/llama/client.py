"""Streaming chat traffic for an OpenAI-compatible server on 127.0.0.1, standard library only.

python client.py TRAFFIC... --port PORT --dur SECONDS --log FILE

One JSON object a line per request: t (start, unix s), ttft, tpot (s), n (tokens), end (unix s), or err.
Further keys: kind (chat, long, burst), prompt (prompt tokens, if the server says), cached (prompt tokens not computed),
status (HTTP, with err), cut (true: closed by the end of the run; with err if it had no token yet).
"""

import argparse
import http.client
import json
import os
import random
import signal
import socket
import threading
import time

MODEL = "smollm2-135m"
WORDS = """the river house small table green light water garden street morning paper letter window summer winter family
school music story number market village mountain forest island bridge doctor teacher farmer engine machine system
report project company office budget history science picture country city road station train ship field animal horse
bird fish tree flower stone metal glass wood fire wind rain snow sun moon star night day week month year hour minute
people child woman man friend group team leader member player king queen soldier worker student writer artist driver
open close begin finish carry bring leave follow lead build break change turn move travel walk run stand sit speak
listen read write draw sing dance play work rest sleep eat drink cook wash clean cut push pull throw catch hold drop
large little long short high low deep wide narrow heavy light strong weak fast slow early late old young new good bad
right wrong true false clear dark bright warm cold dry wet soft hard full empty rich poor quiet loud simple complex
above below behind before after between under over across along around through against toward within without during
always never often sometimes again almost already only also still even perhaps maybe together alone away back forward
north south east west left center corner edge top bottom side front end middle part whole half piece line point shape
color sound voice word name question answer reason idea plan rule law order form kind level rate value price cost sale
trade bank money gold silver oil coal steel power energy heat force speed weight length height area space place""".split()


class Run:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.deadline = time.monotonic() + args.dur
        self.stop = threading.Event()
        self.lock = threading.Lock()
        self.open: set[socket.socket] = set()
        self.log = open(args.log, "w", encoding="utf-8")
        fixed = random.Random(4711)  # the same documents in every run
        self.documents = [" ".join(fixed.choices(WORDS, k=args.doc)) for _ in range(args.docs)] if args.doc else []

    def over(self) -> bool:
        return self.stop.is_set() or time.monotonic() >= self.deadline

    def rest(self, seconds: float) -> None:
        self.stop.wait(max(0.0, min(seconds, self.deadline - time.monotonic())))

    def record(self, row: dict) -> None:
        with self.lock:
            if not self.log.closed:
                self.log.write(json.dumps(row) + "\n")
                self.log.flush()

    # ------------------------------------------------------------------ what is asked

    def body(self, rng: random.Random, kind: str) -> bytes:
        args = self.args
        if kind == "long":
            words, answer = args.long_words, args.long_answer
        else:
            words, answer = args.words, args.answer
        words = max(1, round(words * rng.uniform(1 - args.spread, 1 + args.spread)))
        answer = max(1, round(answer * rng.uniform(1 - args.spread, 1 + args.spread)))
        messages = []
        if self.documents and kind != "long":
            document = rng.choice(self.documents)
            if args.salt:
                document = f"{rng.getrandbits(32):08x} {document}"
            messages.append({"role": "system", "content": document})
        messages.append({"role": "user", "content": " ".join(rng.choices(WORDS, k=words))})
        return json.dumps({
            "model": MODEL, "messages": messages, "stream": True, "max_tokens": answer, "ignore_eos": True,
            "temperature": 0.8, "seed": rng.getrandbits(30), "stream_options": {"include_usage": True},
        }).encode()

    # ------------------------------------------------------------------ one request

    def request(self, rng: random.Random, kind: str) -> bool:
        """Send one request and log it. False if it failed."""
        body = self.body(rng, kind)
        row: dict = {"t": round(time.time(), 4), "kind": kind}
        began = time.monotonic()
        first = last = None
        seen, counted = 0, None
        sock = None
        connection = http.client.HTTPConnection("127.0.0.1", self.args.port, timeout=max(1.0, self.deadline - began + 2))
        try:
            connection.connect()
            sock = connection.sock
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self.lock:
                self.open.add(sock)
            connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json", "Connection": "close"})
            response = connection.getresponse()
            if response.status != 200:
                text = response.read(2000).decode("utf-8", "replace")
                row["status"] = response.status
                row["err"] = f"HTTP {response.status}: {text[:200]}"
            else:
                while True:
                    line = response.readline()
                    if not line:
                        break
                    now = time.monotonic()
                    if not line.startswith(b"data:"):
                        if line.startswith(b"error:"):
                            row["err"] = line.decode("utf-8", "replace").strip()[:200]
                        continue
                    data = line[5:].strip()
                    if data == b"[DONE]":
                        break
                    event = json.loads(data)
                    if event.get("error"):
                        row["err"] = json.dumps(event["error"])[:200]
                        continue
                    usage = event.get("usage")
                    if usage:
                        counted = usage.get("completion_tokens") or counted
                        row["prompt"] = usage.get("prompt_tokens")
                        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
                        if cached is not None:
                            row["cached"] = cached
                    timings = event.get("timings")
                    if timings and "cache_n" in timings:
                        row["cached"] = timings["cache_n"]
                    for choice in event.get("choices") or ():
                        if (choice.get("delta") or {}).get("content"):
                            seen += 1
                            first = first or now
                            last = now
                if first is None and "err" not in row:
                    row["err"] = "no token"
        except Exception as error:  # noqa: BLE001  a client survives whatever the server does
            row["err"] = f"{type(error).__name__}: {error}"[:200]
        finally:
            if sock is not None:
                with self.lock:
                    self.open.discard(sock)
            try:
                connection.close()
            except OSError:
                pass
        if self.over() and counted is None and "status" not in row:  # the end of the run closed it
            row["cut"] = True
            if first is None:
                row["err"] = "cut: no token before the end of the run"
            else:
                row.pop("err", None)
        if first is not None:
            n = counted if counted else seen
            row["ttft"] = round(first - began, 4)
            row["n"] = n
            row["tpot"] = round((last - first) / (n - 1), 5) if n > 1 else None
        row["end"] = round(time.time(), 4)
        self.record(row)
        return "err" not in row

    # ------------------------------------------------------------------ who asks

    def user(self, number: int, kind: str, delay: float, think: float) -> None:
        """A closed loop: ask, read the whole answer, think."""
        rng = random.Random(f"{self.args.seed}/{kind}/{number}")
        self.rest(delay)
        while not self.over():
            this = kind
            if kind == "chat" and self.args.long_share and rng.random() < self.args.long_share:
                this = "long"
            good = self.request(rng, this)
            pause = think * rng.uniform(0.5, 1.5)
            self.rest(pause if good else max(pause, 0.5))

    def bursts(self) -> None:
        """An open loop: --burst requests at once, --every seconds."""
        number, began = 0, time.monotonic()
        while not self.over():
            for _ in range(self.args.burst):
                if len(self.open) >= 200:
                    break
                rng = random.Random(f"{self.args.seed}/burst/{number}")
                threading.Thread(target=self.request, args=(rng, "burst"), daemon=True).start()
                number += 1
            began += self.args.every
            self.rest(began - time.monotonic())

    def play(self) -> None:
        args = self.args
        threads = []
        for i in range(args.users):
            delay = args.ramp * i / max(1, args.users)
            threads.append(threading.Thread(target=self.user, args=(i, "chat", delay, args.think), daemon=True))
        for i in range(args.long_users):
            delay = 1.0 + args.long_think * i / max(1, args.long_users)
            threads.append(threading.Thread(target=self.user, args=(i, "long", delay, args.long_think), daemon=True))
        if args.burst:
            threads.append(threading.Thread(target=self.bursts, daemon=True))
        for thread in threads:
            thread.start()
        self.stop.wait(max(0.0, self.deadline - time.monotonic()))
        self.stop.set()
        with self.lock:
            sockets = list(self.open)
        for sock in sockets:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        patience = time.monotonic() + 3
        for thread in threads:
            thread.join(max(0.0, patience - time.monotonic()))
        while self.open and time.monotonic() < patience:
            time.sleep(0.02)
        time.sleep(0.1)
        with self.lock:
            self.log.close()
        os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=0, help="users in a closed loop")
    parser.add_argument("--think", type=float, default=0.0, help="mean seconds between an answer and the next question (+-50%%)")
    parser.add_argument("--ramp", type=float, default=1.0, help="seconds over which the users begin")
    parser.add_argument("--words", type=int, default=10, help="words of a question, different each time (about a token each)")
    parser.add_argument("--answer", type=int, default=30, help="tokens of an answer")
    parser.add_argument("--spread", type=float, default=0.2, help="words and answers vary by this share")
    parser.add_argument("--doc", type=int, default=0, help="words of a document in front of each question")
    parser.add_argument("--docs", type=int, default=1, help="different documents")
    parser.add_argument("--salt", action="store_true", help="another word in front of the document each time")
    parser.add_argument("--long-users", type=int, default=0, help="further users, with long prompts")
    parser.add_argument("--long-think", type=float, default=1.0)
    parser.add_argument("--long-words", type=int, default=1000, help="words of a long prompt, different each time")
    parser.add_argument("--long-answer", type=int, default=8)
    parser.add_argument("--long-share", type=float, default=0.0, help="share of the users' requests that have a long prompt")
    parser.add_argument("--burst", type=int, default=0, help="requests at once, in an open loop")
    parser.add_argument("--every", type=float, default=15.0, help="seconds between bursts")
    parser.add_argument("--seed", default="planter")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--dur", type=float, required=True, help="seconds")
    parser.add_argument("--log", required=True)
    args = parser.parse_args()
    if not (args.users or args.long_users or args.burst):
        parser.error("no traffic: give --users, --long-users or --burst")
    args.every = max(0.5, args.every)
    run = Run(args)
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: run.stop.set())
    run.play()


main()
