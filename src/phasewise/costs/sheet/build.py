"""Puts a sheet together: the answer first, then every section."""

from __future__ import annotations

from phasewise.costs.capacity import Capacity, replicas_for
from phasewise.costs.sheet.facts import Asked, Sheet
from phasewise.costs.sheet.levers import lever_section
from phasewise.costs.sheet.load import capacity_of, load_section, price_section, price_words
from phasewise.costs.sheet.phases import decode_section, prefill_section
from phasewise.costs.sheet.quantities import duration, figures, size
from phasewise.costs.sheet.shape import memory_section, shape_section
from phasewise.costs.step_demand import decodes


def sheet_of(asked: Asked) -> Sheet:
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


def _answer(asked: Asked, capacity: Capacity) -> tuple[str, ...]:
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


def _load_answer(asked: Asked, capacity: Capacity) -> tuple[str, ...]:
    point = capacity.point
    if point is None:
        return ("capacity: none within these targets", f"stopped by: {capacity.limit}")
    lines = [
        f"capacity: {figures(point.requests_per_s)} requests/s at a batch of {point.batch:,}",
        f"stopped by: {capacity.limit}",
    ]
    if asked.rate is not None:
        replicas = replicas_for(asked.rate, point)
        lines.append(f"replicas: {replicas:,}, each {_devices(asked)}, for {asked.rate:g} requests/s")
    if asked.deployment.accelerator.price_per_hour > 0:
        lines.append(f"price: {price_words(asked, point)}")
    return tuple(lines)


def _devices(asked: Asked) -> str:
    return f"{asked.deployment.gpus} x {asked.gpu}"
