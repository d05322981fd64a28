"""What engines say of their models at /v1/models, as the gateway says it to clients."""

from __future__ import annotations

from typing import Any

import orjson

from phasewise.scheduling.world import ClusterView

LARGEST_REPLY_BYTES = 1024 * 1024


class ModelCards:
    """The cards of each model, by the worker that gave them when it was last seen to start."""

    def __init__(self, cluster: ClusterView) -> None:
        self._cluster = cluster
        self._by_worker: dict[str, dict[str, dict[str, Any]]] = {}

    def note(self, worker: str, reply: bytes) -> None:
        """A worker answered; what is no list of models is as good as none."""
        cards: dict[str, dict[str, Any]] = {}
        try:
            found = orjson.loads(reply)["data"] if len(reply) <= LARGEST_REPLY_BYTES else ()
            cards = {card["id"]: card for card in found if isinstance(card["id"], str)}
        except (orjson.JSONDecodeError, LookupError, TypeError):
            pass
        self._by_worker[worker] = cards

    def entry(self, model: str) -> dict[str, Any]:
        """A model as its first engine describes it, with the least length that any of its engines takes."""
        workers = [state.worker.name for state in self._cluster.serving(model)]
        cards = [card for name in workers if (card := self._by_worker.get(name, {}).get(model))]
        entry = {"id": model, "object": "model", "created": 0, "owned_by": "phasewise"}
        if not cards:
            return entry
        lengths = [length for card in cards if isinstance(length := card.get("max_model_len"), int)]
        return entry | cards[0] | ({"max_model_len": min(lengths)} if lengths else {})
