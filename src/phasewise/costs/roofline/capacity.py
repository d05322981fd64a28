"""How much load a replica carries within an SLO, how many replicas a rate needs, and what tokens cost.

The model: requests arrive at random (Poisson); prompts are prefilled one after the other, each occupying the
engine for its prefill time, and decoding requests share the steps in between. Means, not percentiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, sqrt

from phasewise.core.slo import Slo
from phasewise.costs.roofline.deployment import Deployment


@dataclass(frozen=True, slots=True)
class UniformTraffic:
    """Identical requests; an answer has at least two tokens, so that there is a decode phase."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0

    @property
    def decode_steps(self) -> int:
        """Steps after the first token, which prefill generates."""
        return self.output_tokens - 1

    @property
    def mean_context_tokens(self) -> int:
        """The context of a request halfway through its answer."""
        return self.prompt_tokens + self.output_tokens // 2

    @property
    def final_context_tokens(self) -> int:
        """How many tokens a request's KV cache holds at its end."""
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """A replica with `batch` requests decoding all the time."""

    batch: int
    prefill_s: float
    step_s: float
    tpot_s: float
    ttft_s: float
    requests_per_s: float
    prefill_share: float

    def meets(self, slo: Slo) -> bool:
        """Whether both phases are fast enough, on average."""
        return self.tpot_s <= slo.tpot_s and self.ttft_s <= slo.ttft_s


def request_s(ttft_s: float, tpot_s: float, output_tokens: int) -> float:
    """The duration of a request: the first token, then one step for each of the others."""
    return ttft_s + (output_tokens - 1) * tpot_s


def operating_point(deployment: Deployment, traffic: UniformTraffic, batch: int) -> OperatingPoint:
    """The latency and the throughput when so many requests decode at once.

    While a request decodes its n tokens, `batch` others are prefilled (as many arrive as leave), so its time
    per token is a step plus batch x prefill / n. Little's law then gives the rate. A new prompt waits for
    those ahead of it, as in a queue with one server and equal service times (M/D/1), and the running step.
    """
    prefill_s = deployment.ttft_s(traffic.prompt_tokens, traffic.cached_tokens)
    step_s = deployment.tpot_s(batch, traffic.mean_context_tokens)
    cycle_s = traffic.decode_steps * step_s + batch * prefill_s
    rate = batch / cycle_s
    load = rate * prefill_s
    wait_s = load * prefill_s / (2 * (1 - load))
    tpot_s = cycle_s / traffic.decode_steps
    return OperatingPoint(batch, prefill_s, step_s, tpot_s, step_s + wait_s + prefill_s, rate, load)


def mean_within(slots: int) -> int:
    """The largest mean number of requests b with b + 2 sqrt(b) <= slots.

    Random arrivals come in bursts: the number of requests has a standard deviation of about sqrt(b). With two
    of them as headroom a request seldom finds no slot; with none, the queue would grow without end.
    """
    return floor((sqrt(slots + 1) - 1) ** 2)


@dataclass(frozen=True, slots=True)
class Capacity:
    """The most that one replica carries; `limit` says what limits it, `point` is None if no batch fits."""

    point: OperatingPoint | None
    limit: str


def largest_within(deployment: Deployment, traffic: UniformTraffic, slo: Slo, max_num_seqs: int) -> Capacity:
    """The largest mean batch that leaves slots for bursts and meets both targets."""
    fitting = deployment.requests_that_fit(traffic.final_context_tokens)
    if fitting < 1:
        return Capacity(None, "memory: not one request fits beside the weights")
    slots = min(fitting, max_num_seqs)
    most = mean_within(slots)
    alone = operating_point(deployment, traffic, 1)
    if not alone.meets(slo):
        missed = "TTFT" if alone.ttft_s > slo.ttft_s else "TPOT"
        return Capacity(None, f"{missed}: not even one request at a time meets it")
    if most < 1:
        return Capacity(None, f"{_slots_words(slots, fitting)}, too few for random arrivals")
    low, high = 1, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        meets = operating_point(deployment, traffic, middle).meets(slo)
        low, high = (middle, high) if meets else (low, middle)
    point = operating_point(deployment, traffic, low)
    if low == most:
        return Capacity(point, f"{_slots_words(slots, fitting)}, with slots for bursts")
    beyond = operating_point(deployment, traffic, low + 1)
    return Capacity(point, "TPOT" if beyond.tpot_s > slo.tpot_s else "TTFT")


def _slots_words(slots: int, fitting: int) -> str:
    return f"KV cache: {fitting:,} fit" if slots == fitting else f"cap: {slots:,} run at once"


def replicas_for(rate: float, point: OperatingPoint) -> int:
    return max(1, ceil(rate / point.requests_per_s))


@dataclass(frozen=True, slots=True)
class Price:
    """What tokens cost at an operating point, each phase paying for the time it takes."""

    replica_per_hour: float
    per_million_input: float
    per_million_output: float
    per_thousand_requests: float


def price_of(replica_per_hour: float, traffic: UniformTraffic, point: OperatingPoint) -> Price:
    """Prompt tokens pay for prefill time; output tokens share the decode steps, one fewer than the tokens."""
    per_second = replica_per_hour / 3600
    steps_per_token = traffic.decode_steps / traffic.output_tokens
    return Price(
        replica_per_hour=replica_per_hour,
        per_million_input=per_second * point.prefill_s / traffic.prompt_tokens * 1e6,
        per_million_output=per_second * point.step_s / point.batch * steps_per_token * 1e6,
        per_thousand_requests=per_second / point.requests_per_s * 1e3,
    )
