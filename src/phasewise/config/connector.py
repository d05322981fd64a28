"""Whether a connector that a pool brings itself, in its engine flags, can hand KV over. Pure.

The connector that phasewise sets where a pool brings none stands in fleet/kv_connector.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from phasewise.config.engine_flags import find_dotted, find_flag, flag_place, json_object
from phasewise.config.fleet import Pool
from phasewise.config.source import Place, Problem
from phasewise.model.worker import Role

KV_TRANSFER_FLAG = "--kv-transfer-config"
NIXL = "NixlConnector"
DEFAULT_LEASE_S = 30
"""How long the engine keeps KV that nobody has fetched when its connector's settings do not say."""

_NIXL_PULLS = (NIXL, "NixlPullConnector")
_SEVERAL = "MultiConnector"
_KV_ROLES = {Role.PREFILL: ("kv_producer", "kv_both"), Role.DECODE: ("kv_consumer", "kv_both")}


def connector_problems(number: int, pool: Pool, lease_s: int) -> Iterator[Problem]:
    """What is wrong with the connector that this pool, the file's `number`th, brings itself."""
    dotted = find_dotted(pool.engine_flags, KV_TRANSFER_FLAG)
    if dotted is not None:
        words = f"holds {KV_TRANSFER_FLAG} in parts, which cannot be checked; write it as one JSON object"
        yield Problem(flag_place(number, dotted), words)
        return
    flag = find_flag(pool.engine_flags, KV_TRANSFER_FLAG)
    if flag is None:
        return
    place, settings = flag_place(number, flag.position), json_object(flag.value)
    if settings is None:
        yield Problem(place, f"{KV_TRANSFER_FLAG} is not a JSON object; write it as one, in one word")
        return
    connector = _nixl_part(settings)
    if connector is None:
        yield Problem(
            place,
            f"the connector of pool {pool.name} is {settings.get('kv_connector')!r}, by which nothing can be "
            f"handed over; write {NIXL!r}, or leave {KV_TRANSFER_FLAG} out and phasewise sets it",
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
    # After its lease, the engine gives another request's KV for the asking, without a word.
    if pool.role is Role.PREFILL and not (isinstance(kept_s, int) and kept_s >= lease_s):
        yield Problem(
            place,
            f"pool {pool.name} keeps KV for {kept_s!r} s (kv_lease_duration), less than "
            f"gateway.hand_over.lease_s, which is {lease_s}: answers could be written from another "
            "request's KV; make them the same",
        )


def _nixl_part(settings: dict[str, Any]) -> dict[str, Any] | None:
    """The settings of the connector that pulls KV by NIXL, alone or as one of several."""
    if settings.get("kv_connector") in _NIXL_PULLS:
        return settings
    extra = settings.get("kv_connector_extra_config")
    parts = extra.get("connectors") if isinstance(extra, dict) else None
    if settings.get("kv_connector") != _SEVERAL or not isinstance(parts, list):
        return None
    return next((it for it in parts if isinstance(it, dict) and it.get("kv_connector") in _NIXL_PULLS), None)
