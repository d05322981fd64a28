"""The sheet's levers: by what each would multiply the times of either phase, and the room for KV cache."""

from __future__ import annotations

from phasewise.costs.lever_effects import lever_effects
from phasewise.costs.precision import Arithmetic
from phasewise.costs.sheet.facts import Asked, Column, FactTable, Row, Section


def lever_section(asked: Asked, batch: int) -> Section:
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
        rows.append(Row((effect.lever, *ratios), (effect.lever, *texts)))
    remark = "below 1 is faster; w8a8 and w4a16 change answers, phasewise levers measures by how much"
    if Arithmetic.INT8 not in asked.deployment.accelerator.peak_flops:
        remark += "; this device has no faster units for 8 bit, so that w8a8 saves reads only"
    return Section(
        "Levers: what each would multiply",
        (),
        FactTable("levers", columns, tuple(rows)),
        remark,
    )
