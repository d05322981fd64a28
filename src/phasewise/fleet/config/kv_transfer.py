"""Which pools can transfer KV to each other, according to the fleet file. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, NamedTuple

from phasewise.core.worker import Role
from phasewise.fleet.config.fleet import FleetConfig, Pool, find_flag, json_object, with_dashes
from phasewise.fleet.config.source import Place, Problem

# --- Whether a pool's own connector, in its engine flags, can transfer KV. Pure.

KV_TRANSFER_FLAG = "--kv-transfer-config"
NIXL = "NixlConnector"
DEFAULT_LEASE_S = 30
"""How long the engine keeps KV that was not fetched when its connector's settings do not say."""

_NIXL_PULLS = (NIXL, "NixlPullConnector")
_SEVERAL = "MultiConnector"
_KV_ROLES = {Role.PREFILL: ("kv_producer", "kv_both"), Role.DECODE: ("kv_consumer", "kv_both")}


def connector_problems(number: int, pool: Pool, lease_s: int) -> Iterator[Problem]:
    """What is wrong with the own connector of this pool, the file's `number`th."""
    for position, word in enumerate(pool.engine_flags):
        name, dot, _ = word.partition(".")
        if dot and with_dashes(name) == KV_TRANSFER_FLAG:
            words = (
                f"sets {KV_TRANSFER_FLAG} key by key, which cannot be checked; write it as one JSON object"
            )
            yield Problem(_flag_place(number, position), words)
            return
    flag = find_flag(pool.engine_flags, KV_TRANSFER_FLAG)
    if flag is None:
        return
    place, settings = _flag_place(number, flag.position), json_object(flag.value)
    if settings is None:
        yield Problem(place, f"{KV_TRANSFER_FLAG} is not a JSON object; write it as one argument")
        return
    connector = _nixl_part(settings)
    if connector is None:
        yield Problem(
            place,
            f"the connector of pool {pool.name} is {settings.get('kv_connector')!r}, which phasewise cannot "
            f"use; write {NIXL!r}, or remove {KV_TRANSFER_FLAG} and phasewise sets it",
        )
        return
    yield from _setting_problems(place, pool, connector, lease_s)


def _setting_problems(place: Place, pool: Pool, connector: dict[str, Any], lease_s: int) -> Iterator[Problem]:
    accepted = _KV_ROLES[pool.role]
    if connector.get("kv_role") not in accepted:
        yield Problem(
            place,
            f"kv_role is {connector.get('kv_role')!r} in pool {pool.name}, whose role is '{pool.role}'; "
            f"accepted: {' or '.join(map(repr, accepted))}",
        )
    extra = connector.get("kv_connector_extra_config")
    kept_s = extra.get("kv_lease_duration", DEFAULT_LEASE_S) if isinstance(extra, dict) else DEFAULT_LEASE_S
    # After the lease, the engine silently serves whatever KV is in those blocks.
    if pool.role is Role.PREFILL and not (isinstance(kept_s, int) and kept_s >= lease_s):
        yield Problem(
            place,
            f"pool {pool.name} keeps KV for {kept_s!r} s (kv_lease_duration), less than "
            f"gateway.kv_transfer.lease_s, which is {lease_s}: answers could be written from another "
            "request's KV; set both to the same value",
        )


def _flag_place(pool_number: int, position: int) -> Place:
    return ("pools", pool_number, "engine_flags", position)


def _nixl_part(settings: dict[str, Any]) -> dict[str, Any] | None:
    """The settings of the connector that pulls KV with NIXL, alone or as one of several."""
    if settings.get("kv_connector") in _NIXL_PULLS:
        return settings
    extra = settings.get("kv_connector_extra_config")
    parts = extra.get("connectors") if isinstance(extra, dict) else None
    if settings.get("kv_connector") != _SEVERAL or not isinstance(parts, list):
        return None
    return next(
        (part for part in parts if isinstance(part, dict) and part.get("kv_connector") in _NIXL_PULLS), None
    )


_OWN_STATE_DRAFTERS = ("eagle", "mtp")
"""Speculation whose drafter has its own KV, which is transferred too."""


class _Trait(NamedTuple):
    """What both sides must share: its description, its lever (if it is one), and its engine flags."""

    words: str
    lever: str | None
    flags: tuple[str, ...]
    default: str = ""


_TRAITS = (
    _Trait("the type of the KV cache", "kv_dtype", ("--kv-cache-dtype",), "auto"),
    _Trait("the quantization of the weights", "weight_quantization", ("--quantization", "-q")),
    _Trait("the attention backend", "attention_backend", ("--attention-backend",)),
    _Trait("the model's dtype", None, ("--dtype",), "auto"),
    _Trait("the size of a KV block", None, ("--block-size",)),
    _Trait("the model's revision", None, ("--revision",)),
)


class _Setting(NamedTuple):
    """A trait of one pool: its value (empty: the engine's default) and its path in the file."""

    value: str
    place: Place

    @property
    def shown(self) -> str:
        return repr(self.value) if self.value else "the engine's default"


def kv_transfer_problems(fleet: FleetConfig, beside: Callable[[Place], str]) -> Iterator[Problem]:
    """Everything that keeps prefill pools from KV transfers to decode pools; `beside` names other places."""
    sides = {
        role: [(number, pool) for number, pool in enumerate(fleet.pools) if pool.role is role]
        for role in (Role.PREFILL, Role.DECODE)
    }
    yield from _lonely_sides(sides)
    for number, pool in (*sides[Role.PREFILL], *sides[Role.DECODE]):
        yield from connector_problems(number, pool, fleet.gateway.kv_transfer.lease_s)
    for giver, taker in product(sides[Role.PREFILL], sides[Role.DECODE]):
        yield from _differences(giver, taker, beside)


def _lonely_sides(sides: dict[Role, list[tuple[int, Pool]]]) -> Iterator[Problem]:
    for role, other in ((Role.PREFILL, Role.DECODE), (Role.DECODE, Role.PREFILL)):
        if sides[role] and not sides[other]:
            number, _ = sides[role][0]
            yield Problem(
                ("pools", number, "role"),
                f"is '{role}', but no pool has the role '{other}' to transfer KV with; "
                f"add a pool with role: {other}, or remove role",
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
    # Reported at the side that sets it; if both do, at the decode side.
    (pool, here), (other_pool, there) = sorted(
        (one, other), key=lambda side: (not side[1].value, side[0].role)
    )
    return Problem(
        here.place,
        f"{words} is {here.shown} in pool {pool.name} and {there.shown} in pool {other_pool.name} "
        f"({beside(there.place)}), so they cannot use each other's KV; write the same in both pools",
    )


def _setting(number: int, pool: Pool, trait: _Trait) -> _Setting:
    flag = find_flag(pool.engine_flags, *trait.flags)
    if flag is not None:
        value, place = flag.value, _flag_place(number, flag.position)
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
    return _Setting(f"{method} {settings.get('model', '')}".strip(), _flag_place(number, flag.position))
