"""Sizes of planted traffic that follow from an engine's step costs. Pure.

What is slow on one machine is fast on another: objectives and prompts are as long as this machine makes them.
"""

from __future__ import annotations

from dataclasses import dataclass

from phasewise.core.errors import MeasurementError
from phasewise.core.slo import Slo
from phasewise.core.units import duration
from phasewise.costs.fit.step import StepSeconds, StepWork, chunk_pairs, decoding
from phasewise.loadgen.workload.arrivals import ClosedLoop
from phasewise.loadgen.workload.lengths import Lengths
from phasewise.loadgen.workload.plan import CONTEXT_MARGIN_TOKENS, PlanSpec
from phasewise.loadgen.workload.presets import Shape

TTFT_STEPS, TPOT_STEPS = 16, 2.0
"""The objective in lone decode steps: a machine on which nothing is wrong meets it with margin."""
TYPICAL_CONTEXT_TOKENS = 256
CHUNK_TOKENS = 2048
LONG = 3.0
"""A long prompt takes this many times the objective of TTFT,"""
LONG_ENOUGH = 1.5
"""and at least this many, where no longer one fits the context."""
WINDOW_S = 30.0
FEWEST_REQUESTS, MOST_REQUESTS = 9, 400
SHARED = 0.9


def easy_objective(step_s: float) -> Slo:
    """What a machine meets with ease if a lone decode step takes this long."""
    return Slo(ttft_s=TTFT_STEPS * step_s, tpot_s=TPOT_STEPS * step_s)


def prefill_s(cost: StepSeconds, tokens: int, chunk_tokens: int = CHUNK_TOKENS) -> float:
    """How long a prompt takes alone."""
    total_s = 0.0
    for done in range(0, tokens, chunk_tokens):
        size = min(chunk_tokens, tokens - done)
        total_s += cost(StepWork(size, 0, 1, chunk_pairs(size, done), 0))
    return total_s


def tokens_taking(cost: StepSeconds, seconds: float, most_tokens: int) -> int:
    """The prompt that takes this long, or the longest that fits."""
    low, high = 1, most_tokens
    while high - low > 8:
        middle = (low + high) // 2
        low, high = (middle, high) if prefill_s(cost, middle) < seconds else (low, middle)
    return high


@dataclass(frozen=True, slots=True)
class PlantedTraffic:
    """Traffic in a closed loop, the objective that it is judged by, and both in words."""

    plan: PlanSpec
    slo: Slo
    about: str


@dataclass(frozen=True, slots=True)
class PlantSizes:
    """Plans traffic for an engine with these step costs and this context."""

    cost: StepSeconds
    context_tokens: int

    @property
    def slo(self) -> Slo:
        """The objective of all planted traffic."""
        return easy_objective(self.cost(decoding([TYPICAL_CONTEXT_TOKENS])))

    def short(self, clients: int, prompt_tokens: int, output_tokens: int, *, at_once: int) -> PlantedTraffic:
        """Short prompts from several clients; the engine runs at most `at_once` of them together."""
        streams = min(clients, at_once)
        token_s = self.cost(decoding([TYPICAL_CONTEXT_TOKENS] * streams))
        request_s = (prefill_s(self.cost, prompt_tokens) + output_tokens * token_s) * clients / streams
        return self._traffic(clients, prompt_tokens, output_tokens, request_s)

    def long(self, output_tokens: int, *, shared: bool) -> PlantedTraffic:
        """Prompts longer than the objective allows, one at a time; `shared` ones begin with the same text."""
        most_tokens = self.context_tokens - output_tokens - CONTEXT_MARGIN_TOKENS
        tokens = tokens_taking(self.cost, LONG * self.slo.ttft_s, most_tokens)
        takes_s = prefill_s(self.cost, tokens)
        if takes_s < LONG_ENOUGH * self.slo.ttft_s:
            raise MeasurementError(
                f"the longest prompt that fits ({tokens:,} tokens) takes {duration(takes_s)} here, too short "
                f"to miss an objective of {duration(self.slo.ttft_s)}",
                hint="validate with a larger --model, or with a longer --context",
            )
        request_s = takes_s + output_tokens * self.cost(decoding([tokens]))
        return self._traffic(1, tokens, output_tokens, request_s, int(SHARED * tokens) if shared else 0)

    def _traffic(
        self, clients: int, prompt_tokens: int, output_tokens: int, request_s: float, shared_tokens: int = 0
    ) -> PlantedTraffic:
        requests = clients * max(round(WINDOW_S / request_s), 1)
        shape = Shape(
            about="planted",
            prompt=Lengths.fixed(prompt_tokens),
            output=Lengths.fixed(output_tokens),
            shared_prefix_tokens=shared_tokens,
            shared_share=1.0 if shared_tokens else 0.0,
        )
        plan = PlanSpec(
            source=shape,
            load=ClosedLoop(clients),
            requests=min(max(requests, FEWEST_REQUESTS), MOST_REQUESTS),
        )
        words = f"prompts of {prompt_tokens:,} tokens"
        if shared_tokens:
            words += f" that begin with the same {shared_tokens:,}"
        about = f"{words}, answers of {output_tokens}, {clients} at once"
        return PlantedTraffic(plan, self.slo, about)
