"""What makes an engine hand KV over: the connector's flag and the environment it reads. Pure.

Whether two pools fit each other is config/hand_over.py's to check; which prompts go that way is routing's.
"""

from __future__ import annotations

import json

from phasewise.config import KV_TRANSFER_FLAG, NIXL, Pool, find_flag
from phasewise.fleet.placement import Place
from phasewise.model.worker import Role

KV_ROLES = {Role.PREFILL: "kv_producer", Role.DECODE: "kv_consumer"}


def connector_arguments(pool: Pool, *, on_cpu: bool, lease_s: int) -> list[str]:
    """The connector for an engine of this pool; nothing where it takes both phases or brings its own."""
    if pool.role not in KV_ROLES or find_flag(pool.engine_flags, KV_TRANSFER_FLAG) is not None:
        return []
    settings: dict[str, object] = {
        "kv_connector": NIXL,
        "kv_role": KV_ROLES[pool.role],
        # The engine's other choice is to compute a prompt again without a word: slow, and seen by nobody.
        "kv_load_failure_policy": "fail",
        "kv_connector_extra_config": {"kv_lease_duration": lease_s},
    }
    if on_cpu:
        settings["kv_buffer_device"] = "cpu"
    return [KV_TRANSFER_FLAG, json.dumps(settings, separators=(",", ":"))]


def connector_environment(place: Place, host: str, *, on_cpu: bool) -> dict[str, str]:
    """Where the engine at `place` is asked for its KV, and by which ways bytes travel."""
    if place.side_port is None:
        return {}
    env = {"VLLM_NIXL_SIDE_CHANNEL_HOST": host, "VLLM_NIXL_SIDE_CHANNEL_PORT": str(place.side_port)}
    # Without a GPU the transport's search for faster hardware only costs time and warnings.
    return env | ({"UCX_TLS": "tcp,sm,self"} if on_cpu else {})
