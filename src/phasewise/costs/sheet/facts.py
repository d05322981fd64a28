"""What a sheet is made of: what was asked, figures with their formulas, and tables.

The sections fill these in; the command line prints them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from phasewise.costs.capacity import Traffic
from phasewise.costs.deployment import Deployment
from phasewise.model.slo import Slo

STATEMENT = "modelled, not measured"
Cell = float | int | str | bool | None


@dataclass(frozen=True, slots=True)
class Asked:
    """What the sheet is about; `gpu` is the accelerator's short name."""

    name: str
    gpu: str
    deployment: Deployment
    traffic: Traffic
    context_tokens: int
    slo: Slo
    max_running: int
    rate: float | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """What the figures leave out, of the model, of this way to run it and of this traffic."""
        notes = self.deployment.notes
        longest = max(self.traffic.final_context_tokens, self.context_tokens)
        most = self.deployment.architecture.max_context_tokens
        if most is None or longest <= most:
            return notes
        return (
            *notes,
            f"{longest:,} tokens are more than the model is made for ({most:,}): vLLM refuses them",
        )


@dataclass(frozen=True, slots=True)
class Fact:
    """A figure in its base unit (bytes, seconds), as it is read, and the formula that gives it."""

    key: str
    label: str
    value: Cell
    text: str
    formula: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """A column: the field's name for programs, and its head for readers."""

    key: str
    head: str


@dataclass(frozen=True, slots=True)
class Row:
    """A row: values for programs, texts for readers."""

    values: tuple[Cell, ...]
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FactTable:
    """Figures against something that varies."""

    key: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    def to_list(self) -> list[dict[str, Cell]]:
        """One object per row."""
        keys = [column.key for column in self.columns]
        return [dict(zip(keys, row.values, strict=True)) for row in self.rows]


@dataclass(frozen=True, slots=True)
class Section:
    """Figures that belong together; `remark` says how to read them."""

    title: str
    facts: tuple[Fact, ...]
    table: FactTable | None = None
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Sheet:
    """The whole sheet; `answer` is what to read if nothing else."""

    asked: Asked
    answer: tuple[str, ...]
    sections: tuple[Section, ...]

    def fact(self, key: str) -> Fact:
        """A figure by its key."""
        return next(fact for section in self.sections for fact in section.facts if fact.key == key)

    def to_dict(self) -> dict[str, Any]:
        """Everything, for programs."""
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
