"""The workloads that are predicted and measured, sized for the demo model on one core; none was fitted to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kv_transfers.fleets import Layout

from phasewise.benchmark.workload.arrivals import ClosedLoop, OpenLoop, Spacing
from phasewise.benchmark.workload.drafts import Conversations
from phasewise.benchmark.workload.plan import PlanSpec
from phasewise.benchmark.workload.presets import Lengths, Shape

CHUNK_TOKENS, SMALL_CHUNK_TOKENS, BATCH = 2048, 128, 64
SESSION = Conversations(4, 1.0)

CHAT = Shape(
    about="short prompts, most of them after a shared system prompt",
    prompt=Lengths(220, 0.4, 64, 500),
    output=Lengths(24, 0.5, 8, 64),
    shared_prefix_tokens=150,
    shared_share=0.8,
    follow_up=Lengths(30, 0.5, 8, 80),
)
RAG = Shape(
    about="long prompts, brief answers", prompt=Lengths(360, 0.4, 160, 800), output=Lengths(16, 0.4, 8, 32)
)
CODE = Shape(
    about="both phases matter",
    prompt=Lengths(260, 0.6, 60, 700),
    output=Lengths(36, 0.5, 12, 100),
    shared_prefix_tokens=150,
    shared_share=0.5,
)
SHARED = Shape(
    about="a few long system prompts",
    prompt=Lengths(520, 0.15, 450, 700),
    output=Lengths(20, 0.4, 8, 48),
    shared_prefix_tokens=400,
    shared_share=1.0,
    shared_prefixes=3,
)


@dataclass(frozen=True)
class Workload:
    """What is asked of an arrangement: as much as `load` of what it carries, by the simulator.

    Without a load so many clients ask at once, each again as soon as it has its answer.
    """

    name: str
    shape: Shape
    load: float | None
    requests: int = 20
    burstiness: float = 1.0
    conversations: Conversations | None = None
    clients: int = 0

    def spec(self, rate_per_s: float) -> PlanSpec:
        """At this rate, of sessions if it has any; to the last turn, as a run that ends by time cuts them."""
        load = (
            OpenLoop(
                rate_per_s, Spacing.POISSON if self.burstiness == 1.0 else Spacing.GAMMA, self.burstiness
            )
            if self.load is not None
            else ClosedLoop(self.clients)
        )
        return PlanSpec(self.shape, load, self.requests, conversations=self.conversations)


@dataclass(frozen=True)
class Arrangement:
    """Engines on this machine, a core each, and what they are asked."""

    name: str
    layout: Layout
    pools: tuple[dict[str, Any], ...]
    workloads: tuple[Workload, ...]


def _pool(
    name: str, chunk_tokens: int = CHUNK_TOKENS, engines: int = 1, role: str = "mixed"
) -> dict[str, Any]:
    levers = {"max_num_batched_tokens": chunk_tokens, "max_num_seqs": BATCH}
    return {"name": name, "replicas": engines, "cores": 1, "levers": levers, "role": role}


SESSIONS = Workload("sessions", CHAT, 0.6, 20, conversations=SESSION)
ARRANGEMENTS = (
    Arrangement(
        "one engine",
        Layout.MIXED,
        (_pool("main"),),
        (
            Workload("chat", CHAT, 0.6, 18),
            Workload("rag", RAG, 0.6, 12),
            Workload("code", CODE, 0.6, 12),
            Workload("bursts", CHAT, 0.5, 18, burstiness=4.0),
            Workload("shared prefixes", SHARED, 0.6, 14),
            SESSIONS,
            Workload("clients", CHAT, None, 24, conversations=Conversations(4, 0.0), clients=6),
        ),
    ),
    Arrangement(
        "one engine, small chunks",
        Layout.MIXED,
        (_pool("main", SMALL_CHUNK_TOKENS),),
        (Workload("rag", RAG, 0.6, 12), SESSIONS),
    ),
    Arrangement(
        "two engines",
        Layout.MIXED,
        (_pool("main", engines=2),),
        (Workload("chat", CHAT, 0.6, 28), SESSIONS),
    ),
    Arrangement(
        "two engines, apart",
        Layout.DISAGGREGATED,
        (_pool("prefill", role="prefill"), _pool("decode", role="decode")),
        (Workload("chat", CHAT, 0.6, 18), Workload("rag", RAG, 0.6, 12)),
    ),
)


def shortened(arrangement: Arrangement) -> Arrangement:
    """One workload of a few requests: proves that it runs."""
    return replace(arrangement, workloads=(replace(arrangement.workloads[0], requests=8),))
