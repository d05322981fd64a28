"""The sheet's last sections: what load one replica carries within the targets, and what tokens cost."""

from __future__ import annotations

from phasewise.core.units import duration, significant
from phasewise.costs.roofline.bounds import TotalTime
from phasewise.costs.roofline.capacity import (
    Capacity,
    OperatingPoint,
    Price,
    largest_within,
    price_of,
    replicas_for,
    request_s,
)
from phasewise.costs.roofline.step_demand import decodes
from phasewise.costs.sheet.facts import (
    Section,
    SheetFact,
    SheetSubject,
    count_fact,
    dollars,
    figure_fact,
    money_fact,
    seconds,
    time_fact,
)
from phasewise.costs.sheet.step_formulas import sum_formula


def capacity_of(asked: SheetSubject) -> Capacity:
    """The most of this traffic that a replica carries."""
    return largest_within(asked.deployment, asked.traffic, asked.slo, asked.max_num_seqs)


def load_section(asked: SheetSubject, capacity: Capacity) -> Section:
    """The largest batch within the targets, and how many replicas a rate needs."""
    traffic = f"{asked.traffic.prompt_tokens:,} tokens in, {asked.traffic.output_tokens:,} out"
    targets = f"TTFT {duration(asked.slo.ttft_s)}, TPOT {duration(asked.slo.tpot_s)}"
    title = f"Capacity: {traffic}, within {targets}"
    limit = SheetFact("limit", "what stops it", capacity.limit, capacity.limit)
    if capacity.point is None:
        return Section(title, (limit,))
    facts = [limit, *_point_facts(asked, capacity.point)]
    if asked.rate is not None:
        facts += _replica_facts(asked, asked.rate, capacity.point)
    remark = (
        "means over requests that arrive at random, not percentiles: leave headroom. At most so many decode"
        " on average, b, that b + 2 x sqrt(b) are no more than can run: a burst then seldom finds no slot"
    )
    return Section(title, tuple(facts), remark=remark)


def _point_facts(asked: SheetSubject, point: OperatingPoint) -> list[SheetFact]:
    steps, prefill, step = asked.traffic.decode_steps, seconds(point.prefill_s), seconds(point.step_s)
    rate, share = significant(point.requests_per_s, 4), significant(point.prefill_share, 4)
    takes_s = request_s(point.ttft_s, point.tpot_s, asked.traffic.output_tokens)
    waiting = f"{share} x {prefill} / (2 x (1 - {share}))"
    whole = f"{seconds(point.ttft_s)} + {steps} x {seconds(point.tpot_s)}"
    each_takes = f"({steps} x {seconds(point.tpot_s)})"
    return [
        count_fact("max_num_seqs", "requests that may run", asked.max_num_seqs),
        count_fact("batch", "requests that decode, mean", point.batch),
        time_fact("step_s", "one decode step", point.step_s),
        time_fact(
            "tpot_s",
            "TPOT, others' prefill between",
            point.tpot_s,
            f"{step} + {point.batch} x {prefill} / {steps}",
        ),
        figure_fact(
            "requests_per_s", "requests per second", point.requests_per_s, f"{point.batch} / {each_takes}"
        ),
        figure_fact("prefill_share", "share of time for prefill", point.prefill_share, f"{rate} x {prefill}"),
        time_fact("ttft_s", "TTFT, waiting included", point.ttft_s, f"{step} + {waiting} + {prefill}"),
        time_fact("request_s", "a whole request", takes_s, whole),
        _stall_fact(asked, point),
    ]


def _stall_fact(asked: SheetSubject, point: OperatingPoint) -> SheetFact:
    """The step with a prompt's first chunk makes every stream wait."""
    deployment, traffic = asked.deployment, asked.traffic
    first = deployment.prefill_chunks(traffic.prompt_tokens, traffic.cached_tokens)[0]
    step = deployment.step(first, decodes(point.batch, traffic.mean_context_tokens))
    return time_fact("stall_s", "gap while a prompt is read", step.total_s, sum_formula(TotalTime((step,))))


def _replica_facts(asked: SheetSubject, rate: float, point: OperatingPoint) -> list[SheetFact]:
    replicas = replicas_for(rate, point)
    needed = f"{rate:g} / {significant(point.requests_per_s, 4)}, rounded up"
    devices = f"{replicas} x {asked.deployment.gpus}"
    return [
        count_fact("replicas", f"replicas for {rate:g} requests/s", replicas, needed),
        count_fact("devices", "devices", replicas * asked.deployment.gpus, devices),
    ]


def price_section(asked: SheetSubject, point: OperatingPoint) -> Section:
    """What a replica's hour and a million tokens cost at that point."""
    price = _price(asked, point)
    per_second = f"{price.replica_per_hour:g} / 3600"
    prompt = f"{seconds(point.prefill_s)} / {asked.traffic.prompt_tokens:,}"
    steps = f"{asked.traffic.decode_steps:,} / {asked.traffic.output_tokens:,}"
    token = f"{seconds(point.step_s)} / {point.batch:,} x {steps}"
    request = significant(point.requests_per_s, 4)
    each = f"{asked.deployment.gpus} x {asked.deployment.accelerator.price_per_hour:g}"
    facts = (
        money_fact("replica_per_hour", "a replica's hour", price.replica_per_hour, each),
        money_fact(
            "per_million_input",
            "a million input tokens",
            price.per_million_input,
            f"{per_second} x {prompt} x 1e6",
        ),
        money_fact(
            "per_million_output",
            "a million output tokens",
            price.per_million_output,
            f"{per_second} x {token} x 1e6",
        ),
        money_fact(
            "per_thousand_requests",
            "a thousand requests",
            price.per_thousand_requests,
            f"{per_second} / {request} x 1000",
        ),
    )
    remark = "a replica that is half idle costs twice as much per token"
    return Section("Price, when that batch is kept full", facts, remark=remark)


def price_words(asked: SheetSubject, point: OperatingPoint) -> str:
    """The price in one line."""
    price = _price(asked, point)
    tokens = (
        f"{dollars(price.per_million_input)} in, {dollars(price.per_million_output)} out per million tokens"
    )
    return f"{tokens}, at {dollars(asked.deployment.accelerator.price_per_hour)} per device hour"


def _price(asked: SheetSubject, point: OperatingPoint) -> Price:
    per_hour = asked.deployment.gpus * asked.deployment.accelerator.price_per_hour
    return price_of(per_hour, asked.traffic, point)
