"""Which pools can hand KV over to each other, from what the fleet file says of them. Pure.

Connectors are connector.py's; what running engines say of themselves is the check package's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import NamedTuple

from phasewise.config.connector import connector_problems
from phasewise.config.engine_flags import find_flag, flag_place, json_object
from phasewise.config.fleet import FleetConfig, Pool
from phasewise.config.source import Place, Problem
from phasewise.model.worker import Role

_OWN_STATE_DRAFTERS = ("eagle", "mtp")
"""Speculation whose drafter keeps KV of its own, which travels along."""


class _Trait(NamedTuple):
    """What both sides must have alike: in words, as a lever (if it is one), and as flags of the engine."""

    words: str
    lever: str | None
    flags: tuple[str, ...]
    default: str = ""


_TRAITS = (
    _Trait("the type of the KV cache", "kv_dtype", ("--kv-cache-dtype",), "auto"),
    _Trait("the quantisation of the weights", "weight_quantisation", ("--quantization", "-q")),
    _Trait("the attention backend", "attention_backend", ("--attention-backend",)),
    _Trait("the model's dtype", None, ("--dtype",), "auto"),
    _Trait("the size of a KV block", None, ("--block-size",)),
    _Trait("the model's revision", None, ("--revision",)),
)


class _Setting(NamedTuple):
    """A trait of one pool: its value (empty: the engine's default) and where the file says so."""

    value: str
    place: Place

    @property
    def shown(self) -> str:
        return repr(self.value) if self.value else "the engine's default"


def hand_over_problems(fleet: FleetConfig, beside: Callable[[Place], str]) -> Iterator[Problem]:
    """Everything that keeps prefill pools from handing over to decode pools; `beside` names other places."""
    sides = {
        role: [(number, pool) for number, pool in enumerate(fleet.pools) if pool.role is role]
        for role in (Role.PREFILL, Role.DECODE)
    }
    yield from _lonely_sides(sides)
    for number, pool in (*sides[Role.PREFILL], *sides[Role.DECODE]):
        yield from connector_problems(number, pool, fleet.gateway.hand_over.lease_s)
    for giver, taker in product(sides[Role.PREFILL], sides[Role.DECODE]):
        yield from _differences(giver, taker, beside)


def _lonely_sides(sides: dict[Role, list[tuple[int, Pool]]]) -> Iterator[Problem]:
    for role, other in ((Role.PREFILL, Role.DECODE), (Role.DECODE, Role.PREFILL)):
        if sides[role] and not sides[other]:
            number, _ = sides[role][0]
            yield Problem(
                ("pools", number, "role"),
                f"is '{role}', and no pool has the role '{other}', so there is nobody to hand KV over with; "
                f"add a pool with role: {other}, or leave role out",
            )


def _differences(
    giver: tuple[int, Pool], taker: tuple[int, Pool], beside: Callable[[Place], str]
) -> Iterator[Problem]:
    for trait in _TRAITS:
        one, other = _setting(*giver, trait), _setting(*taker, trait)
        if one.value != other.value:
            yield _difference(trait.words, (giver[1], one), (taker[1], other), beside)
    one, other = _drafter(*giver), _drafter(*taker)
    if one.value != other.value:
        yield _difference("the drafting model", (giver[1], one), (taker[1], other), beside)


def _difference(
    words: str, one: tuple[Pool, _Setting], other: tuple[Pool, _Setting], beside: Callable[[Place], str]
) -> Problem:
    # Told at the side that says something; where both do, at the decode side.
    (pool, here), (other_pool, there) = sorted(
        (one, other), key=lambda side: (not side[1].value, side[0].role)
    )
    return Problem(
        here.place,
        f"{words} is {here.shown} in pool {pool.name} and {there.shown} in pool {other_pool.name} "
        f"({beside(there.place)}), so neither can go on with the other's KV; write the same in both pools",
    )


def _setting(number: int, pool: Pool, trait: _Trait) -> _Setting:
    flag = find_flag(pool.engine_flags, *trait.flags)
    if flag is not None:
        value, place = flag.value, flag_place(number, flag.position)
    elif trait.lever is not None and (chosen := getattr(pool.levers, trait.lever)) is not None:
        value, place = str(chosen), ("pools", number, "levers", trait.lever)
    else:
        value, place = "", ("pools", number)
    return _Setting("" if value == trait.default else value, place)


def _drafter(number: int, pool: Pool) -> _Setting:
    flag = find_flag(pool.engine_flags, "--speculative-config")
    settings = json_object(flag.value) if flag is not None else None
    if flag is None or settings is None:
        return _Setting("", ("pools", number))
    method = str(settings.get("method", ""))
    if not any(kind in method for kind in _OWN_STATE_DRAFTERS):
        return _Setting("", ("pools", number))
    return _Setting(f"{method} {settings.get('model', '')}".strip(), flag_place(number, flag.position))
