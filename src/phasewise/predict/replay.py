"""Replays recorded traffic through virtual engines and says what its clients would have seen.

Open loops repeat the recorded arrivals; closed loops send a request when another one ends. Which costs are
tried, and what the outcome means, is effects.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from phasewise.costs.step_work import StepSeconds, StepWork
from phasewise.fake_engine.virtual_engine import VirtualEngine, VirtualRequest
from phasewise.fake_engine.virtual_run import VirtualOutcome, run_closed, run_virtually
from phasewise.predict.drafting import NO_GUESSES, Drafting
from phasewise.predict.figures import Figures, figures_of
from phasewise.predict.prompt_ids import InventedPrompt, cached_beforehand, invent_prompts
from phasewise.predict.setup import Setup
from phasewise.predict.traffic import RecordedRequest, Traffic

_LONG_BEFORE_S = -1e6
"""When prefixes are put into the cache that it held before the window: all of it is done by then."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """One request as its client would have seen it; its tokens are those of the recorded answer."""

    outcome: VirtualOutcome
    tokens: int

    @property
    def tpot_s(self) -> float | None:
        """Time per token after the first; guessed tokens come several at once."""
        decode_s = self.outcome.e2e_s - self.outcome.ttft_s
        return decode_s / (self.tokens - 1) if self.tokens > 1 else None


def replay(
    traffic: Traffic,
    setup: Setup,
    cost: StepSeconds,
    *,
    drafting: Drafting = NO_GUESSES,
    beyond_marks: float = 0.5,
) -> Figures:
    """Run the traffic; the figures are those of requests that count."""
    charged = _charging_guesses(cost, drafting)
    seen: list[Replayed] = []
    for requests, clients in by_engine(traffic, setup.engines):
        prompts = invent_prompts(requests, beyond_marks)
        engine = VirtualEngine(setup.shape, charged)
        if setup.shape.prefix_cache:
            _warm(engine, requests, prompts)
        seen += _run(engine, requests, prompts, drafting.tokens_per_step, clients, traffic.outside_s)
    return _figures(seen, traffic)


def _run(
    engine: VirtualEngine,
    requests: Sequence[RecordedRequest],
    prompts: Sequence[InventedPrompt],
    tokens_per_step: float,
    concurrency: int | None,
    turnaround_s: float,
) -> list[Replayed]:
    asked = [
        VirtualRequest(
            request_id=request.request_id,
            prompt_ids=prompt.ids,
            max_tokens=1 + ceil((request.output_tokens - 1) / tokens_per_step),
            arrived_s=request.came_s,
            ignore_eos=True,
        )
        for request, prompt in zip(requests, prompts, strict=True)
    ]
    outcomes = (
        run_virtually(engine, asked)
        if concurrency is None
        else run_closed(engine, asked, concurrency, turnaround_s=turnaround_s)
    )
    return [
        Replayed(outcome, request.output_tokens) for outcome, request in zip(outcomes, requests, strict=True)
    ]


def _warm(
    engine: VirtualEngine, requests: Sequence[RecordedRequest], prompts: Sequence[InventedPrompt]
) -> None:
    """Put into the cache what it held when the window began, as far as the window tells."""
    run_virtually(
        engine,
        (
            VirtualRequest(f"before-{index}", ids, 1, _LONG_BEFORE_S, ignore_eos=True)
            for index, ids in enumerate(cached_beforehand(requests, prompts))
        ),
    )


def _charging_guesses(cost: StepSeconds, drafting: Drafting) -> StepSeconds:
    """Guessed tokens are computed beside the one that is sure: each costs what a token of a batch costs."""
    if not drafting.drafted_per_step:
        return cost

    def charged(work: StepWork) -> float:
        guessed = round(work.decode_tokens * drafting.drafted_per_step)
        return cost(replace(work, decode_tokens=work.decode_tokens + guessed))

    return charged


def by_engine(traffic: Traffic, engines: int) -> list[tuple[list[RecordedRequest], int | None]]:
    """Who serves what, and for how many clients of a closed loop: as recorded, or, if there were another
    number of engines, by least outstanding. Engines that serve nothing are left out."""
    clients = traffic.concurrency
    if engines == len(traffic.engines) and (clients is None or clients >= engines):
        shares = [
            [request for request in traffic.requests if request.engine == engine]
            for engine in traffic.engines
        ]
    elif clients is None:
        shares = _by_least_outstanding(traffic, engines)
    else:
        shares = _by_client(traffic, clients, engines)
    # Where clients cannot be dealt out evenly, the engine that serves most has one more.
    dealt = enumerate(sorted(filter(None, shares), key=len, reverse=True))
    return [
        (share, None if clients is None else len(range(index, clients, engines))) for index, share in dealt
    ]


def _by_client(traffic: Traffic, clients: int, engines: int) -> list[list[RecordedRequest]]:
    """Each client has its engine; one without a client serves nothing."""
    shares: list[list[RecordedRequest]] = [[] for _ in range(engines)]
    for index, request in enumerate(traffic.requests):
        shares[index % clients % engines].append(request)
    return shares


def _by_least_outstanding(traffic: Traffic, engines: int) -> list[list[RecordedRequest]]:
    shares: list[list[RecordedRequest]] = [[] for _ in range(engines)]
    # When a request would end is not known before the replay; when it did end is.
    open_until: list[list[float]] = [[] for _ in range(engines)]
    for request in traffic.requests:
        for index, ends in enumerate(open_until):
            open_until[index] = [end for end in ends if end > request.came_s]
        chosen = min(range(engines), key=lambda index: (len(open_until[index]), len(shares[index])))
        open_until[chosen].append(request.went_s)
        shares[chosen].append(request)
    return shares


def _figures(seen: Sequence[Replayed], traffic: Traffic) -> Figures:
    counted = sorted(seen, key=lambda each: each.outcome.arrived_s)[traffic.warm_up :]
    if not counted:
        return {}
    outcomes = [each.outcome for each in counted]
    return figures_of(
        [outcome.ttft_s + traffic.outside_s for outcome in outcomes],
        [tpot for each in counted if (tpot := each.tpot_s) is not None],
        [gap_s for outcome in outcomes for gap_s in outcome.gaps_s],
        sum(each.tokens for each in counted),
        max(outcome.token_times_s[-1] for outcome in outcomes) - min(each.arrived_s for each in outcomes),
    )
