"""`kv_transfer_params` as vLLM's NIXL connector reads and writes them.

What is done with them is the engine's matter; unknown or incomplete ones are left aside, as vLLM does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phasewise.fake_engine.kv_connector import Address, RemoteKv


def wants_kv_kept(params: object) -> bool:
    """Whether another engine is to go on with this request."""
    return isinstance(params, dict) and bool(params.get("do_remote_decode"))


def remote_kv_of(params: object) -> RemoteKv | None:
    """Where the KV of this request's prompt lies, if another engine has computed it."""
    if not isinstance(params, dict) or not params.get("do_remote_prefill"):
        return None
    named = [params.get(f"remote_{name}") for name in ("host", "port", "engine_id", "request_id")]
    groups = params.get("remote_block_ids")
    if None in named or not isinstance(groups, list) or not all(isinstance(group, list) for group in groups):
        return None
    host, port, engine_id, request_id = named
    cached_tokens = params.get("remote_prefill_cached_tokens")
    return RemoteKv(
        (str(host), int(str(port))),
        str(engine_id),
        str(request_id),
        tuple(block for group in groups for block in group),
        cached_tokens if isinstance(cached_tokens, int) else None,
    )


def kv_params(
    address: Address, engine_id: str, request_id: str, blocks: Sequence[int], tokens: int, cached_tokens: int
) -> dict[str, Any]:
    """What tells another engine where a prompt's KV lies."""
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [list(blocks)],
        "remote_engine_id": engine_id,
        "remote_request_id": request_id,
        "remote_host": address[0],
        "remote_port": address[1],
        "tp_size": 1,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": tokens,
        "remote_blocks_expiry_time": None,
        "transfer_mode": "pull",
        "remote_prefill_cached_tokens": cached_tokens,
    }
