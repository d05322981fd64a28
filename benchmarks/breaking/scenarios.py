"""The ways in which a KV transfer can fail, each of which can be made to happen once.

Every function returns when it has happened; engines that died come back by themselves.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from phasewise.fake_engine.engine import FakeEngine

from .pairs import Pairs, until

DEAD_FOR_S = 0.2


async def prefill_dies(pairs: Pairs) -> None:
    """A prefill engine dies with prompts or KV on it."""
    (await _first(pairs.prefill, lambda engine: engine.engine.kv_usage > 0)).die(DEAD_FOR_S)


async def kv_rejected(pairs: Pairs) -> None:
    """A decode engine answers a request with KV with an error."""
    await _counted(pairs, "rejected", lambda engine: engine.inject("kv_reject", times=1))


async def decode_dies_before_first_token(pairs: Pairs) -> None:
    """A decode engine dies while KV is under way to it."""
    for engine in pairs.decode:
        engine.inject("kv_slow", factor=20.0)
    (await _first(pairs.decode, lambda engine: engine.engine.deferred > 0)).die(DEAD_FOR_S)


async def decode_dies_in_mid_answer(pairs: Pairs) -> None:
    """A decode engine dies while it writes."""
    (await _first(pairs.decode, lambda engine: engine.engine.running > 0)).die(DEAD_FOR_S)


async def transfer_hangs(pairs: Pairs) -> None:
    """KV does not come, until the gateway has given up on some."""
    await _counted(pairs, "timed_out", lambda engine: engine.inject("kv_hang"))


async def ticket_of_a_restarted_engine(pairs: Pairs) -> None:
    """A prefill engine is restarted while decode engines have not yet asked for what it kept."""
    for engine in pairs.decode:
        engine.inject("slow", delay_s=0.1, times=4)
    await (await _first(pairs.prefill, lambda engine: engine.engine.kept_requests > 0)).restart()


SCENARIOS: dict[str, Callable[[Pairs], Awaitable[None]]] = {
    it.__name__: it
    for it in (
        prefill_dies,
        kv_rejected,
        decode_dies_before_first_token,
        decode_dies_in_mid_answer,
        transfer_hangs,
        ticket_of_a_restarted_engine,
    )
}


async def _first(engines: Sequence[FakeEngine], fits: Callable[[FakeEngine], bool]) -> FakeEngine:
    found: list[FakeEngine] = []

    def look() -> bool:
        found.extend(engine for engine in engines if engine.alive and fits(engine))
        return bool(found)

    await until(look)
    return found[0]


async def _counted(pairs: Pairs, outcome: str, breaks: Callable[[FakeEngine], None]) -> None:
    """Break something of one decode engine, until the gateway has counted it."""
    before = (await pairs.kv_transfers()).get(outcome, 0.0)
    breaks(await _first(pairs.decode, lambda engine: True))

    async def grew() -> bool:
        return (await pairs.kv_transfers()).get(outcome, 0.0) > before

    await until(grew)
