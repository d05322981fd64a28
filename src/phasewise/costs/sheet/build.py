"""Puts a sheet together: the answer first, then every section."""

from __future__ import annotations

from phasewise.core.units import duration, significant, size
from phasewise.costs.roofline.capacity import Capacity, replicas_for
from phasewise.costs.roofline.lever_effects import lever_effects
from phasewise.costs.roofline.precision import Arithmetic
from phasewise.costs.roofline.step_demand import decodes
from phasewise.costs.sheet.facts import Column, FactTable, Section, Sheet, SheetRow, SheetSubject
from phasewise.costs.sheet.load import capacity_of, load_section, price_section, price_words
from phasewise.costs.sheet.phases import decode_section, prefill_section
from phasewise.costs.sheet.shape import memory_section, shape_section

# --- The sheet's levers: by what each multiplies the times of both phases, and the KV cache capacity.


def lever_section(asked: SheetSubject, batch: int) -> Section:
    """One row per lever."""
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
    capacity = capacity_of(asked)
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
