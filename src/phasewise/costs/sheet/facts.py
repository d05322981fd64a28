"""What a sheet is made of: its subject, figures with their formulas, and tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, log10
from typing import Any

import orjson

from phasewise.core.slo import Slo
from phasewise.core.units import dollars, duration, significant, size
from phasewise.costs.roofline.capacity import UniformTraffic
from phasewise.costs.roofline.deployment import Deployment

STATEMENT = "modelled, not measured"
Cell = float | int | str | bool | None


@dataclass(frozen=True, slots=True)
class SheetSubject:
    """What the sheet is about; `gpu` is the accelerator's short name."""

    name: str
    gpu: str
    deployment: Deployment
    traffic: UniformTraffic
    context_tokens: int
    slo: Slo
    max_num_seqs: int
    rate: float | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """What the figures leave out about the model, the deployment and the traffic."""
        notes = self.deployment.notes
        longest = max(self.traffic.final_context_tokens, self.context_tokens)
        most = self.deployment.architecture.max_model_len
        if most is None or longest <= most:
            return notes
        return (
            *notes,
            f"{longest:,} tokens are more than the model supports ({most:,}): vLLM rejects them",
        )


@dataclass(frozen=True, slots=True)
class SheetFact:
    """A figure in its base unit (bytes, seconds), as text, and the formula that gives it."""

    key: str
    label: str
    value: Cell
    text: str
    formula: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its field name in JSON, and its heading."""

    key: str
    head: str


@dataclass(frozen=True, slots=True)
class SheetRow:
    """A row: its values for JSON, and its texts."""

    values: tuple[Cell, ...]
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FactTable:
    """Figures against something that varies."""

    key: str
    columns: tuple[Column, ...]
    rows: tuple[SheetRow, ...]

    def to_list(self) -> list[dict[str, Cell]]:
        """One object per row."""
        keys = [column.key for column in self.columns]
        return [dict(zip(keys, row.values, strict=True)) for row in self.rows]


@dataclass(frozen=True, slots=True)
class Section:
    """Figures that belong together; `remark` says how to read them."""

    title: str
    facts: tuple[SheetFact, ...]
    table: FactTable | None = None
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Sheet:
    """The whole sheet; `answer` is its summary."""

    asked: SheetSubject
    answer: tuple[str, ...]
    sections: tuple[Section, ...]

    def fact(self, key: str) -> SheetFact:
        named = {fact.key: fact for section in self.sections for fact in section.facts}
        if key not in named:
            raise KeyError(f"{key!r} is none of {', '.join(named)}")
        return named[key]

    def to_dict(self) -> dict[str, Any]:
        deployment, accelerator = self.asked.deployment, self.asked.deployment.accelerator
        assumptions = deployment.assumptions
        tables = [section.table for section in self.sections if section.table is not None]
        return {
            "statement": STATEMENT,
            "model": self.asked.name,
            "answer": list(self.answer),
            "gpu": self.asked.gpu,
            "gpus": deployment.gpus,
            "accelerator": {
                "name": accelerator.name,
                "peak_flops": {str(kind): peak for kind, peak in accelerator.peak_flops.items()},
                "bandwidth_bytes_per_s": accelerator.bandwidth_bytes_per_s,
                "memory_bytes": accelerator.memory_bytes,
                "link_bytes_per_s": accelerator.link_bytes_per_s,
                "price_per_hour": accelerator.price_per_hour,
            },
            "fits": deployment.fits,
            "facts": {
                fact.key: {"value": fact.value, "text": fact.text, "formula": fact.formula}
                for section in self.sections
                for fact in section.facts
            },
            **{table.key: table.to_list() for table in tables},
            "assumptions": {name: getattr(assumptions, name) for name in assumptions.__slots__},
            "sources": dict(accelerator.sources),
            "notes": list(self.asked.notes),
        }

    def to_json(self) -> str:
        """What `phasewise model sheet --json` prints."""
        return orjson.dumps(self.to_dict(), option=orjson.OPT_INDENT_2).decode()


# --- How figures are written: short for reading, and with enough digits in a formula to reproduce the figure.


def lengths_up_to(most: int | None, usual: Sequence[int]) -> list[int]:
    """The usual lengths that a model supports; its own limit where all of them are longer."""
    return [length for length in usual if most is None or length <= most] or [most or usual[0]]


def power(value: float) -> str:
    """A number for a formula: as it is where whole and short, else four digits and a power of a thousand."""
    if value == 0 or (abs(value) < 1e7 and value == int(value)):
        return f"{int(value):,}"
    exponent = 3 * floor(log10(abs(value)) / 3)
    if exponent in {0, 3}:
        return significant(value, 4)
    return f"{significant(value / 10.0**exponent, 4)}e{exponent}"


def seconds(value: float) -> str:
    """A time for a formula, in seconds."""
    return significant(value, 4)


# --- Facts by the kind of their figure, so that all times are written alike.

NEVER = "never"


def time_fact(key: str, label: str, value_s: float, formula: str = "") -> SheetFact:
    """A time; zero has no formula."""
    return (
        SheetFact(key, label, value_s, duration(value_s), formula)
        if value_s
        else SheetFact(key, label, 0.0, "none")
    )


def size_fact(key: str, label: str, count: float, formula: str) -> SheetFact:
    return SheetFact(key, label, count, size(count), formula)


def figure_fact(key: str, label: str, value: float, formula: str = "", unit: str = "") -> SheetFact:
    """A number that is not a time, a size or a count."""
    return SheetFact(key, label, value, f"{significant(value)} {unit}".rstrip(), formula)


def count_fact(key: str, label: str, count: int | None, formula: str = "", unit: str = "") -> SheetFact:
    """A whole number; None is "never"."""
    if count is None:
        return SheetFact(key, label, None, NEVER)
    return SheetFact(key, label, count, f"{count:,} {unit}".rstrip(), formula)


def money_fact(key: str, label: str, amount: float, formula: str) -> SheetFact:
    return SheetFact(key, label, amount, dollars(amount), formula)
