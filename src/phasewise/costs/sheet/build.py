"""Puts a sheet together: the answer first, then every section."""

from __future__ import annotations

from phasewise.core.units import dollars, duration, significant, size
from phasewise.costs.roofline.capacity import (
    Capacity,
    OperatingPoint,
    Price,
    largest_within,
    price_of,
    replicas_for,
    request_s,
)
from phasewise.costs.roofline.lever_effects import lever_effects
from phasewise.costs.roofline.precision import Arithmetic
from phasewise.costs.roofline.step_demand import TotalTime, decodes
from phasewise.costs.sheet.facts import (
    Column,
    FactTable,
    Section,
    Sheet,
    SheetFact,
    SheetRow,
    SheetSubject,
    count_fact,
    figure_fact,
    money_fact,
    seconds,
    time_fact,
)
from phasewise.costs.sheet.phases import decode_section, prefill_section, sum_formula
from phasewise.costs.sheet.shape import memory_section, shape_section


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
    price = _price(asked, point)
    tokens = (
        f"{dollars(price.per_million_input)} in, {dollars(price.per_million_output)} out per million tokens"
    )
    return f"{tokens}, at {dollars(asked.deployment.accelerator.price_per_hour)} per device hour"


def _price(asked: SheetSubject, point: OperatingPoint) -> Price:
    per_hour = asked.deployment.gpus * asked.deployment.accelerator.price_per_hour
    return price_of(per_hour, asked.traffic, point)


# --- The sheet's levers: by what each multiplies the times of both phases, and the KV cache capacity.


def lever_section(asked: SheetSubject, batch: int) -> Section:
    effects = lever_effects(asked.deployment, asked.traffic, batch)
    columns = (
        Column("lever", "lever"),
        Column("ttft", "TTFT"),
        Column("tpot_alone", "TPOT alone"),
        Column("tpot_batch", f"TPOT at {batch:,}"),
        Column("kv_tokens", "KV tokens"),
    )
    rows = []
    for effect in effects:
        ratios = (effect.ttft, effect.tpot_alone, effect.tpot_batch, effect.kv_tokens)
        texts = ("-" if ratio is None else f"x {ratio:.2f}" for ratio in ratios)
        rows.append(SheetRow((effect.lever, *ratios), (effect.lever, *texts)))
    remark = "below 1 is faster; w8a8 and w4a16 change answers: compare them first"
    if Arithmetic.INT8 not in asked.deployment.accelerator.peak_flops:
        remark += "; this device has no faster units for 8 bit, so w8a8 only saves reads"
    return Section(
        "Levers: what each would multiply",
        (),
        FactTable("levers", columns, tuple(rows)),
        remark,
    )


def sheet_of(asked: SheetSubject) -> Sheet:
    """Everything about a model on these devices under this traffic."""
    capacity = largest_within(asked.deployment, asked.traffic, asked.slo, asked.max_num_seqs)
    sections = [
        shape_section(asked),
        memory_section(asked),
        prefill_section(asked),
        decode_section(asked),
        load_section(asked, capacity),
    ]
    if capacity.point is not None and asked.deployment.accelerator.price_per_hour:
        sections.append(price_section(asked, capacity.point))
    sections.append(lever_section(asked, capacity.point.batch if capacity.point else 1))
    return Sheet(asked, _answer(asked, capacity), tuple(sections))


def _answer(asked: SheetSubject, capacity: Capacity) -> tuple[str, ...]:
    deployment, context = asked.deployment, asked.context_tokens
    if not deployment.fits:
        weights = size(deployment.architecture.weight_bytes)
        return (f"does not fit: {weights} of weights leave no room for KV cache on {_devices(asked)}",)
    prompt = asked.traffic.prompt_tokens
    prefill = deployment.prefill(prompt, asked.traffic.cached_tokens)
    step = deployment.step(decodes(1, context))
    lines = [
        f"fits: {deployment.kv_capacity_tokens:,} tokens of KV cache,"
        f" {deployment.requests_that_fit(asked.traffic.final_context_tokens):,} requests of this length",
        f"prefill: {duration(prefill.total_s)} for {prompt:,} tokens, bound by {prefill.bound}",
        f"decode: {duration(step.total_s)} per token alone, bound by {step.bound}",
    ]
    return (*lines, *_load_answer(asked, capacity))


def _load_answer(asked: SheetSubject, capacity: Capacity) -> tuple[str, ...]:
    point = capacity.point
    if point is None:
        return ("capacity: none within these targets", f"stopped by: {capacity.limit}")
    lines = [
        f"capacity: {significant(point.requests_per_s)} requests/s at a batch of {point.batch:,}",
        f"stopped by: {capacity.limit}",
    ]
    if asked.rate is not None:
        replicas = replicas_for(asked.rate, point)
        lines.append(f"replicas: {replicas:,}, each {_devices(asked)}, for {asked.rate:g} requests/s")
    if asked.deployment.accelerator.price_per_hour > 0:
        lines.append(f"price: {price_words(asked, point)}")
    return tuple(lines)


def _devices(asked: SheetSubject) -> str:
    return f"{asked.deployment.gpus} x {asked.gpu}"
