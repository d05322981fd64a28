"""A fleet file and a workload as what is simulated, with step times from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from random import Random

from phasewise.benchmark.workload.arrivals import ClosedLoop, OpenLoop, Replay, arrival_times_s
from phasewise.benchmark.workload.drafts import Conversations
from phasewise.benchmark.workload.presets import Shape
from phasewise.benchmark.workload.prompts import TEMPLATE_TOKENS, stream
from phasewise.benchmark.workload.traces import Trace, TracedRequest
from phasewise.core.errors import ConfigError, UsageError
from phasewise.core.request import DEFAULT_MAX_WAIT_S
from phasewise.core.worker import DEFAULT_SLOTS
from phasewise.costs.fit.solve import FittedCost
from phasewise.costs.fit.step import StepCost
from phasewise.costs.roofline.deployment import Deployment
from phasewise.costs.roofline.step_demand import PrefillChunk, decodes
from phasewise.fleet.config import FleetConfig
from phasewise.fleet.config.fleet import Pool
from phasewise.fleet.config.gateway import DEFAULT_CLASS
from phasewise.simulator.counting_engine import NO_DRAFTS, DraftedTokens
from phasewise.simulator.fleet import EnginePool, FleetScenario
from phasewise.simulator.hosts import LinkSpeed
from phasewise.simulator.requests import EngineShape
from phasewise.simulator.traffic import Content, Session, SessionTurn, SimulatedTraffic, conversation

BLOCK_TOKENS = 64
"""The size of a cached block, between those of engines on GPUs and on CPUs; a trace may name its own."""
ACCEPTED_DRAFTS = 0.6
"""The share of drafted tokens that is assumed to be right: it depends on the text, which has none here."""
_FAR = 4096
_BATCH = 64
"""A step of so many tokens reads nearly all experts of a mixture."""


def modelled_step_cost(deployment: Deployment) -> StepCost:
    """Slopes of the roofline: weights are read in every step, until arithmetic takes longer than that.

    Experts that a small batch does not touch are counted as read.
    """
    one, many = deployment.step(PrefillChunk(1)), deployment.step(PrefillChunk(_FAR))
    weights_s = deployment.step(decodes(_BATCH, 0)).weight_read_s
    per_token_s = (many.compute_s - one.compute_s) / (_FAR - 1)
    network_s = (many.network_s - one.network_s) / (_FAR - 1)
    # One token that sees many: its pairs are as many as the tokens it sees.
    attention_s = (
        deployment.step(PrefillChunk(_FAR, _FAR)).attention_compute_s
        - deployment.step(PrefillChunk(_FAR)).attention_compute_s
    ) / (_FAR * _FAR)
    kv_s = (deployment.step(decodes(1, 2 * _FAR)).kv_s - deployment.step(decodes(1, _FAR)).kv_s) / _FAR
    return StepCost(
        floor_s=weights_s + one.overhead_s + one.network_s,
        knee_tokens=max(1, round(weights_s / per_token_s)),
        beyond_knee_s_per_token=per_token_s,
        attention_s_per_token_pair=attention_s,
        kv_read_s_per_token=kv_s,
        per_request_s=0.0,
        per_token_s=network_s,
    )


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """How fast engines are and what they hold. `modelled`: from a device's data sheet, not measured.

    `draws` are other step times that fit what was measured about as well.
    """

    cost: StepCost
    kv_tokens: int
    batch_tokens: int
    max_num_seqs: int
    max_model_len: int
    links: LinkSpeed
    modelled: bool
    front_end_s: float = 0.0
    draws: tuple[FittedCost, ...] = ()

    @property
    def fitted(self) -> FittedCost:
        """The step times, and what clients wait beyond them."""
        return FittedCost(self.cost, self.front_end_s)


def modelled_engine(deployment: Deployment, max_model_len: int, link_bytes_per_s: float) -> EngineFigures:
    """An engine by the data sheets of its model and device."""
    if not deployment.fits:
        raise ConfigError("the weights do not fit on these devices", hint="use more of them: --gpus")
    kv_tokens = deployment.kv_capacity_tokens
    return EngineFigures(
        cost=modelled_step_cost(deployment),
        kv_tokens=kv_tokens,
        batch_tokens=deployment.step_tokens,
        max_num_seqs=deployment.accelerator.max_num_seqs,
        max_model_len=min(max_model_len, kv_tokens),
        links=LinkSpeed(link_bytes_per_s, 0.003, max(1, round(deployment.kv_bytes(1)))),
        modelled=True,
    )


def fleet_plan(
    fleet: FleetConfig, engine: EngineFigures, gateways: int = 1, block_tokens: int = BLOCK_TOKENS
) -> FleetScenario:
    """What a fleet file would start, in virtual time."""
    gateway = fleet.gateway
    return FleetScenario(
        pools=tuple(_pool(pool, engine, block_tokens) for pool in fleet.pools),
        gateways=gateways,
        policy=gateway.policy,
        split=gateway.kv_transfer.when,
        threshold_tokens=gateway.kv_transfer.threshold_tokens,
        links=engine.links,
        queue=gateway.queue.max_waiting,
        max_wait_s=next(
            (slo_class.max_wait_s for slo_class in gateway.slo_classes if slo_class.name == DEFAULT_CLASS),
            DEFAULT_MAX_WAIT_S,
        ),
    )


def left_out(fleet: FleetConfig) -> tuple[str, ...]:
    """Settings of the fleet file that change how fast engines are, and are not simulated."""
    found = [f"gpus of pool {pool.name}" for pool in fleet.pools if pool.gpus is not None]
    found += [
        f"{name} of pool {pool.name}"
        for pool in fleet.pools
        for name in ("weight_quantization", "kv_dtype", "kv_cache_memory_bytes", "attention_backend")
        if getattr(pool.levers, name) is not None
    ]
    return tuple(found)


def with_engines(plan: FleetScenario, pool: str, engines: int) -> FleetScenario:
    """The plan with another number of engines in a pool; UsageError if it has no such pool."""
    names = [pool.name for pool in plan.pools]
    if pool not in names:
        raise UsageError(f"no pool is named {pool!r}", hint=f"the fleet has {', '.join(names)}")
    return replace(
        plan,
        pools=tuple(
            replace(planned, engines=engines) if planned.name == pool else planned for planned in plan.pools
        ),
    )


def _pool(pool: Pool, engine: EngineFigures, block_tokens: int) -> EnginePool:
    levers = pool.levers
    max_num_seqs = levers.max_num_seqs or engine.max_num_seqs
    max_model_len = min(levers.max_model_len or engine.max_model_len, engine.kv_tokens)
    shape = EngineShape(
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max(levers.max_num_batched_tokens or engine.batch_tokens, max_num_seqs),
        block_size=block_tokens,
        total_blocks=-(-engine.kv_tokens // block_tokens),
        prefix_cache=levers.prefix_cache is not False,
    )
    drafted = 0 if levers.speculation is None else levers.speculation.tokens
    speculation = DraftedTokens(drafted, drafted * ACCEPTED_DRAFTS) if drafted else NO_DRAFTS
    slots = pool.slots or DEFAULT_SLOTS
    return EnginePool(pool.replicas, engine.cost, shape, pool.role, slots, speculation, name=pool.name)


# --- A workload as traffic: the same lengths, prefixes and times, without any text.

MOST_REQUESTS = 5_000_000
OWN_KEYS = 32
"""The keys of what requests have of their own begin above so many bits, beyond the ids of any trace."""


def traffic_of(
    source: Shape | Trace,
    load: OpenLoop | ClosedLoop | Replay,
    requests: int | None,
    duration_s: float | None,
    conversations: Conversations | None,
    seed: int,
) -> SimulatedTraffic:
    """What a load generator would send with these settings."""
    limit = min(requests or MOST_REQUESTS, MOST_REQUESTS)
    if isinstance(source, Trace):
        return _of_trace(source, load, limit, duration_s, seed)
    turns = 1 if conversations is None else conversations.turns
    drawn = _sessions(source, conversations, seed)
    if isinstance(load, ClosedLoop):
        if requests is None:
            raise UsageError("a closed loop without an end", hint="give --requests, or a --rate")
        return _closed(list(islice(drawn, -(-requests // turns))), load.concurrency)
    if isinstance(load, Replay):
        raise UsageError("a replay needs a trace", hint="give --trace, or a --rate")
    if requests is None and duration_s is None:
        raise UsageError("the run has no end", hint="give --requests or --duration")
    times_s: Iterator[float] = islice(arrival_times_s(load, stream(seed, "arrivals")), -(-limit // turns))
    if duration_s is not None:
        times_s = takewhile(lambda at_s: at_s < duration_s, times_s)
    return SimulatedTraffic([Session(at_s, turns) for at_s, turns in zip(times_s, drawn, strict=False)])


def block_tokens_of(source: Shape | Trace) -> int:
    """The size of a cached block that fits the workload."""
    named = isinstance(source, Trace) and any(request.block_ids for request in source.requests)
    return source.block_tokens if isinstance(source, Trace) and named else BLOCK_TOKENS


def _sessions(
    shape: Shape, conversations: Conversations | None, seed: int
) -> Iterator[tuple[SessionTurn, ...]]:
    """Endless requests, or conversations, of a shape."""
    sizes, choices, thinks = stream(seed, "sizes"), stream(seed, "choices"), stream(seed, "turns")
    text = 0
    while True:
        text += 1
        prompt_tokens, output_tokens = shape.prompt.draw(sizes), shape.output.draw(sizes)
        shares = choices.random() < shape.shared_share and shape.shared_prefix_tokens > 0
        chosen = choices.randrange(shape.shared_prefixes)
        system = (Content(-1 - chosen, shape.shared_prefix_tokens),) if shares else ()
        own_tokens = max(TEMPLATE_TOKENS, prompt_tokens - sum(content.tokens for content in system))
        turns = [(own_tokens, output_tokens, 0.0)]
        for _ in range(0 if conversations is None else conversations.turns - 1):
            turns.append(_later(shape, conversations, thinks))
        yield conversation(0.0, text, turns, system).turns


def _later(shape: Shape, conversations: Conversations | None, rng: Random) -> tuple[int, int, float]:
    think_s = 0.0 if conversations is None else conversations.think_s
    asked, answered = shape.follow_up.draw(rng) + TEMPLATE_TOKENS, shape.output.draw(rng)
    return asked, answered, rng.expovariate(1 / think_s) if think_s else 0.0


def _closed(sessions: list[tuple[SessionTurn, ...]], concurrency: int) -> SimulatedTraffic:
    """So many clients at once: each sends one session after the other."""
    clients = (sessions[number::concurrency] for number in range(concurrency))
    return SimulatedTraffic(
        [Session(0.0, tuple(turn for turns in each for turn in turns)) for each in clients if each]
    )


def _of_trace(
    trace: Trace,
    load: OpenLoop | ClosedLoop | Replay,
    limit: int,
    duration_s: float | None,
    seed: int,
) -> SimulatedTraffic:
    turns = [
        _traced(request, number, trace.block_tokens) for number, request in enumerate(trace.requests[:limit])
    ]
    if isinstance(load, ClosedLoop):
        return _closed([(turn,) for turn in turns], load.concurrency)
    if isinstance(load, OpenLoop):
        times_s: Iterator[float] = arrival_times_s(load, stream(seed, "arrivals"))
    else:
        times_s = (request.at_s / load.speed for request in trace.requests)
    sessions = [Session(at_s, (turn,)) for at_s, turn in zip(times_s, turns, strict=False)]
    return SimulatedTraffic(
        [session for session in sessions if duration_s is None or session.at_s < duration_s]
    )


def _traced(request: TracedRequest, number: int, block_tokens: int) -> SessionTurn:
    """Blocks that the trace names, and the request's own text after them."""
    prompt, output_tokens = (Content(number, request.prompt_tokens),), max(1, request.output_tokens)
    if not request.block_ids:
        return SessionTurn(prompt, output_tokens)
    named = request.block_ids[: request.prompt_tokens // block_tokens]
    own = (request.prompt_tokens + output_tokens) // block_tokens - len(named)
    first_own = (1 + number) << OWN_KEYS
    return SessionTurn(prompt, output_tokens, keys=(*named, *range(first_own, first_own + own)))
