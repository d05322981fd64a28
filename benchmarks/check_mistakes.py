"""Plants the classic mistakes of disaggregated fleets: which does `phasewise check` name rightly, and when?

    python benchmarks/check_mistakes.py [--quick] [--only NAME ...] [--json] [--home DIR]

Two real engines, one of which is started with each mistake in turn: a connector left out, another block size,
KV type or model, a failure policy that hides failures, no engine at all. Addresses that lead nowhere, to a
port that swallows everything, or to another engine are put into the prefill engine's replies on their way.
The check must name the mistake, and nothing else but what follows from it. --quick does it with fake engines.
The last line is one JSON object: mistakes, named, worst_s (the slowest check), good_ok (a sound pair is not
blamed) and each case. The exit code is 1 unless every mistake is named and the sound pair is not blamed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from script import command_line, print_record, say, use_home

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from phasewise.clients.http_client import HttpClient, Timeouts  # noqa: E402
from phasewise.core.worker import Role  # noqa: E402
from phasewise.fake_engine.engine import FakeEngine, FakeEngineConfig  # noqa: E402
from phasewise.fleet.check.gather import gather_facts  # noqa: E402
from phasewise.fleet.check.judgement import Mistake, judge  # noqa: E402
from phasewise.fleet.config import WorkerConfig  # noqa: E402
from phasewise.fleet.local.plan import ProcessPlan  # noqa: E402
from phasewise.simulator.kv import Connector, OnLoadFailure  # noqa: E402
from tests.real_pair import RealPair, running_real_pair  # noqa: E402
from tests.side_channel import greeting_port  # noqa: E402

CONFIG_FLAG = "--kv-transfer-config"
AFTER_MEETING = "wrong port after they met"
Change = Callable[[ProcessPlan], ProcessPlan]


@dataclass(frozen=True)
class Case:
    """A mistake, what the check must call it, and how it was judged."""

    name: str
    expected: Mistake | None
    found: tuple[str, ...]
    words: tuple[str, ...]
    seconds: float

    @property
    def right(self) -> bool:
        """Whether the check says that this mistake was made, and no other."""
        if self.expected is None:
            return not self.found
        others = set(self.found) - {self.expected.value, Mistake.ENGINE_NOT_READY.value}
        return self.expected.value in self.found and not others

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "expected": self.expected,
            "found": self.found,
            "right": self.right,
            "seconds": round(self.seconds, 2),
            "words": self.words,
        }


def main() -> None:
    """Plant, check, print the record."""
    parser = command_line(__doc__, quick="with fake engines, in seconds")
    parser.add_argument("--only", nargs="*", default=None, help="these cases alone")
    parser.add_home()
    options = parser.parse_args()
    use_home(options.home)
    cases = list(fake_cases() if options.quick else real_cases(options.only))
    planted = [it for it in cases if it.expected is not None]
    record = {
        "mistakes": len(planted),
        "named": sum(it.right for it in planted),
        "worst_s": round(max((it.seconds for it in cases), default=0.0), 2),
        "good_ok": all(it.right for it in cases if it.expected is None),
        "cases": [it.as_json() for it in cases],
    }
    print_record(record, options)
    sys.exit(0 if passed(record) else 1)


def passed(record: dict[str, Any]) -> bool:
    """Whether every mistake was named, none was made up, and there was one at all."""
    return bool(0 < record["mistakes"] == record["named"] and record["good_ok"])


# --- real engines -----------------------------------------------------------------------------------------


def real_cases(only: list[str] | None) -> Iterator[Case]:
    """Every mistake on two real engines; each restart takes half a minute, so there are as few as can be."""

    def wanted(name: str) -> bool:
        return only is None or name in only

    with (
        tempfile.TemporaryDirectory(prefix="phasewise-mistakes-") as folder,
        running_real_pair(Path(folder)) as pair,
    ):
        # First: engines that have met need no side channel any more.
        yield from on_the_way(pair, wanted)
        if wanted("sound pair"):
            yield checked(pair.workers, "sound pair", None)
        if wanted(AFTER_MEETING):
            with closed_port() as nobody:
                expected = Mistake.SIDE_CHANNEL_OUT_OF_REACH
                yield checked(pair.workers, AFTER_MEETING, expected, advertised_port=nobody)
        for name, (expected, change) in decode_mistakes(Path(folder)).items():
            if wanted(name):
                pair.restart(Role.DECODE, change)
                yield checked(pair.workers, name, expected)
        if wanted("no connector on prefill"):
            pair.restart(Role.PREFILL, without_connector)
            yield checked(pair.workers, "no connector on prefill", Mistake.NO_CONNECTOR_PREFILL)
        if wanted("no ready prefill engine"):
            pair.prefill.kill()
            yield checked(pair.workers, "no ready prefill engine", Mistake.NO_PREFILL_ENGINE)


def decode_mistakes(folder: Path) -> dict[str, tuple[Mistake, Change]]:
    """What a decode engine can be started with so that KV transfers fail, loudly or not."""
    return {
        "no connector on decode": (Mistake.NO_CONNECTOR_DECODE, without_connector),
        "other block size": (Mistake.BLOCK_SIZE_DIFFERS, with_flags("--block-size", "32")),
        "other KV type": (Mistake.CACHE_DTYPE_DIFFERS, with_flags("--kv-cache-dtype", "fp8")),
        "other model": (Mistake.MODEL_DIFFERS, lambda process: of_other_model(process, folder)),
        # Last, as an engine that is otherwise sound: the other side's mistake is planted beside it.
        "failures hidden": (Mistake.FALL_BACK_ALLOWED, hiding_failures),
    }


def without_connector(process: ProcessPlan) -> ProcessPlan:
    at = process.argv.index(CONFIG_FLAG)
    return process.model_copy(update={"argv": process.argv[:at] + process.argv[at + 2 :]})


def hiding_failures(process: ProcessPlan) -> ProcessPlan:
    at = process.argv.index(CONFIG_FLAG) + 1
    config = {**json.loads(process.argv[at]), "kv_load_failure_policy": "recompute"}
    argv = (*process.argv[:at], json.dumps(config), *process.argv[at + 1 :])
    return process.model_copy(update={"argv": argv})


def with_flags(*flags: str) -> Change:
    return lambda process: process.model_copy(update={"argv": (*process.argv, *flags)})


def of_other_model(process: ProcessPlan, folder: Path) -> ProcessPlan:
    """The same weights under another path: to engines that is another model."""
    source = next(Path(it) for it in process.argv if Path(it).is_dir() and "models" in it)
    other = folder / "other-model"
    other.symlink_to(source)
    argv = tuple(str(other) if it == str(source) else it for it in process.argv)
    return process.model_copy(update={"argv": argv})


def on_the_way(pair: RealPair, wanted: Callable[[str], bool]) -> Iterator[Case]:
    """Addresses that the decode engine cannot use, put into the prefill engine's replies."""
    with closed_port() as nobody, deaf_port() as deaf:
        places = {
            "wrong side channel port": (Mistake.SIDE_CHANNEL_WRONG, nobody),
            "blocked port": (Mistake.SIDE_CHANNEL_BLOCKED, deaf),
            "side channel of another engine": (Mistake.HANDSHAKE_REJECTED, pair.decode.side_port),
        }
        for name, (expected, port) in places.items():
            if wanted(name):
                yield checked(pair.workers, name, expected, advertised_port=port)


# --- fake engines -----------------------------------------------------------------------------------------

SOUND = FakeEngineConfig(kv_transfer=Connector(handshake_timeout_s=0.5))
WITHOUT = replace(SOUND, kv_transfer=None)
HIDING = replace(SOUND, kv_transfer=Connector(handshake_timeout_s=0.5, on_failure=OnLoadFailure.RECOMPUTE))


def fake_cases() -> Iterator[Case]:
    """Those mistakes that fake engines can make; they find each other without the sockets that greet."""
    with closed_port() as nobody, deaf_port() as deaf:
        yield from (
            fake_case("wrong side channel port", Mistake.SIDE_CHANNEL_WRONG, advertised_port=nobody),
            fake_case("blocked port", Mistake.SIDE_CHANNEL_BLOCKED, advertised_port=deaf),
            fake_case("sound pair", None),
            fake_case(AFTER_MEETING, Mistake.SIDE_CHANNEL_OUT_OF_REACH, listening=False),
            fake_case("no connector on decode", Mistake.NO_CONNECTOR_DECODE, decode=WITHOUT),
            fake_case("no connector on prefill", Mistake.NO_CONNECTOR_PREFILL, prefill=WITHOUT),
            fake_case("failures hidden", Mistake.FALL_BACK_ALLOWED, decode=HIDING),
            fake_case("no ready prefill engine", Mistake.NO_PREFILL_ENGINE, prefill=None),
        )


def fake_case(
    name: str,
    expected: Mistake | None,
    *,
    prefill: FakeEngineConfig | None = SOUND,
    decode: FakeEngineConfig = SOUND,
    advertised_port: int | None = None,
    listening: bool = True,
) -> Case:
    """One mistake between two engines of its own; `listening` is whether the prefill side's port answers."""

    async def run() -> Case:
        async with greeting_port() as side_port:
            return await between(side_port if listening else 0)

    async def between(side_port: int) -> Case:
        sound = prefill or SOUND
        own = sound.kv_transfer and replace(sound.kv_transfer, side_port=side_port)
        engines = [FakeEngine(replace(sound, kv_transfer=own)), FakeEngine(decode)]
        try:
            for engine in engines:
                await engine.start()
            if prefill is None:
                await engines[0].stop()
            workers = tuple(
                WorkerConfig(name=role.value, url=engine.base_url, model=engine.model, role=role)
                for role, engine in zip((Role.PREFILL, Role.DECODE), engines, strict=True)
            )
            return await check(workers, name, expected, advertised_port)
        finally:
            for engine in engines:
                await engine.stop()

    return asyncio.run(run())


# --- what both have ---------------------------------------------------------------------------------------


def checked(
    workers: tuple[WorkerConfig, ...], name: str, expected: Mistake | None, advertised_port: int | None = None
) -> Case:
    """The same, for whoever has no event loop."""
    return asyncio.run(check(workers, name, expected, advertised_port))


async def check(
    workers: tuple[WorkerConfig, ...], name: str, expected: Mistake | None, advertised_port: int | None
) -> Case:
    """Check these engines; the prefill engine may be made to say that its KV is somewhere else."""
    async with contextlib.AsyncExitStack() as stack:
        asked = workers
        if advertised_port is not None:
            url = await stack.enter_async_context(misdirecting(workers[0].url, advertised_port))
            asked = (workers[0].model_copy(update={"url": url}), *workers[1:])
        began_s = time.monotonic()
        findings = judge(await gather_facts(asked))
        took_s = time.monotonic() - began_s
    found, words = tuple(it.mistake.value for it in findings), tuple(it.words for it in findings)
    say(f"{name}: {', '.join(found) or 'nothing'} ({took_s:.1f} s)")
    return Case(name, expected, found, words, took_s)


@contextlib.asynccontextmanager
async def misdirecting(url: str, port: int) -> AsyncIterator[str]:
    """An address that passes everything on to `url` and changes the port that KV is to be asked for at."""
    client = HttpClient(url, Timeouts(connect_s=5.0, head_s=30.0, idle_s=30.0))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                method, path, _ = head.split(b"\r\n", 1)[0].decode().split()
                length = re.search(rb"content-length: (\d+)", head)
                body = await reader.readexactly(int(length[1]) if length else 0)
                headers = [(b"content-type", b"application/json")]
                reply = await client.fetch(method, path, headers=headers, body=body)
                said = re.sub(rb'"remote_port":\s*\d+', b'"remote_port":%d' % port, reply.body)
                writer.write(b"HTTP/1.1 %d OK\r\ncontent-length: %d\r\n\r\n" % (reply.status, len(said)))
                writer.write(said)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        client.close()
        # Its connections were closed by who opened them; their tasks end on the loop's next turns.
        await asyncio.sleep(0.05)


@contextlib.contextmanager
def closed_port() -> Iterator[int]:
    """A port that nobody can listen on in the meantime."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@contextlib.contextmanager
def deaf_port() -> Iterator[int]:
    """A port that takes no connection and rejects none, as behind a firewall: its queue is full."""
    with contextlib.ExitStack() as held:
        listening = held.enter_context(socket.socket())
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(4):
            waiting = held.enter_context(socket.socket())
            waiting.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                waiting.connect(listening.getsockname())
        time.sleep(0.2)
        yield listening.getsockname()[1]


if __name__ == "__main__":
    main()
