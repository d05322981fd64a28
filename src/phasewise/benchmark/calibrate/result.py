"""The result of a calibration: the fit, its error on held-out steps, and whether its form is right."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from phasewise.costs.fit.misfit import Cell, FormCheck
from phasewise.costs.fit.step import Binding, CostPart, StepKind, StepWork, binding, decoding, prefilling
from phasewise.costs.fit.step_fit import CONFIDENCE, StepFit, error_span
from phasewise.costs.roofline.architecture import Architecture
from phasewise.costs.roofline.step_demand import PrefillChunk, StepDemand, decodes, demand_of

CALIBRATION_VERSION = 1
PREFILL_TOKENS = (32, 128, 512, 2048, 8192)
BATCHES = (1, 4, 16, 64)
CONTEXTS_TOKENS = (256, 128, 64, 32)
"""The context of the streams: the longest of these that was seen, as a slow engine has seen short ones alone.
"""
WORST_CELLS = 3
SIXTEEN_BIT_BYTES = 2.0
"""What a number takes where the configuration says nothing else; demands are counted so."""


class Seen(StrEnum):
    """The source of the steps' times."""

    STEPS = "step record"
    CLIENT = "client timings"


@dataclass(frozen=True, slots=True)
class Busy:
    """Of a step's time, the share in which the machine would do its arithmetic, and its memory traffic, at
    full speed. What neither of them explains is overhead.
    """

    work: StepWork
    math: float
    memory: float


@dataclass(frozen=True, slots=True)
class CalibratedMachine:
    """What is known about the machine in addition to the fit: the model's shape, how many bytes a number of
    it takes, and how fast the machine reads and multiplies.
    """

    architecture: Architecture
    element_bytes: float
    read_bytes_per_s: float
    source: str
    flops_per_s: float
    math_source: str

    @property
    def weight_bytes(self) -> float:
        """What one stream reads: of experts those it needs, of the embeddings only the output head."""
        return self._demand(decoding([0])).weight_bytes * self.element_bytes / SIXTEEN_BIT_BYTES

    @property
    def weights_read_s(self) -> float:
        """How long reading all weights once would take at best."""
        return self.weight_bytes / self.read_bytes_per_s

    def busy(self, work: StepWork, seconds: float) -> Busy:
        """How busy its math and its memory are in a step that takes so long."""
        demand = self._demand(work)
        moved = demand.memory_bytes * self.element_bytes / SIXTEEN_BIT_BYTES
        return Busy(work, demand.flops / self.flops_per_s / seconds, moved / self.read_bytes_per_s / seconds)

    def _demand(self, work: StepWork) -> StepDemand:
        streams = work.decode_tokens
        chunks = [decodes(streams, work.kv_read_tokens // streams)] if streams else []
        chunks += [PrefillChunk(work.prompt_tokens)] if work.prompt_tokens else []
        return demand_of(self.architecture, SIXTEEN_BIT_BYTES, chunks)

    def to_dict(self) -> dict[str, Any]:
        """What a report says of it."""
        return {
            "weight_bytes": self.weight_bytes,
            "element_bytes": self.element_bytes,
            "read_bytes_per_s": self.read_bytes_per_s,
            "source": self.source,
            "flops_per_s": self.flops_per_s,
            "math_source": self.math_source,
        }


@dataclass(frozen=True, slots=True)
class Calibration:
    """Everything a calibration found.

    `model_root` is what the engine says it loaded, `no_record` why its step record was not used. `unreported`
    steps could not be used. `stolen` is the share of processor time that the hypervisor gave to others, None
    where the system does not report it.
    """

    url: str
    model: str
    model_root: str | None
    seen: Seen
    fit: StepFit
    form: FormCheck
    rounds: float
    unreported: int
    took_s: float
    stolen: float | None
    seed: int
    no_record: str = ""
    machine: CalibratedMachine | None = None

    @property
    def bindings(self) -> tuple[Binding, ...]:
        """What binds the smallest and the largest batch, and the longest prefill step, that it knows."""
        weights_read_s = None if self.machine is None else self.machine.weights_read_s
        streams = [work for work in self.decode_works if self.fit.predict(work)]
        prompts = [work for work in prefill_works() if self.fit.predict(work)]
        works = [*streams[:1], *streams[-1:], *prompts[-1:]]
        return tuple(binding(self.fit.cost, work, weights_read_s) for work in dict.fromkeys(works))

    @property
    def decode_works(self) -> list[StepWork]:
        """Steps with various batches, at the longest context that is known of one stream."""
        known = (tokens for tokens in CONTEXTS_TOKENS if self.fit.predict(decoding([tokens])))
        return decode_works(next(known, CONTEXTS_TOKENS[0]))

    @property
    def busy(self) -> tuple[Busy, ...]:
        """How busy math and memory are in the same steps; empty if the machine is unknown."""
        if self.machine is None:
            return ()
        return tuple(self.machine.busy(each.work, each.seconds) for each in self.bindings)

    def to_dict(self) -> dict[str, Any]:
        """The result as plain JSON types."""
        return {
            "v": CALIBRATION_VERSION,
            "url": self.url,
            "model": self.model,
            "model_root": self.model_root,
            "seen": self.seen,
            "no_record": self.no_record,
            "steps": self.fit.observations,
            "regimes": len(self.fit.seen),
            "unread_steps": self.unreported,
            "rounds": round(self.rounds, 2),
            "took_s": round(self.took_s, 1),
            "stolen_share": self.stolen,
            "seed": self.seed,
            "cost": asdict(self.fit.cost),
            "front_end_s": self.fit.fitted.front_end_s,
            "intervals": self._intervals(),
            "held_out": {kind.value: self._held_out(kind) for kind in StepKind},
            "form": {
                "fits": self.form.fits,
                "cells": len(self.form.cells),
                "missed": [_cell(cell) for cell in self.form.missed],
            },
            "predictions": [self._prediction(work) for work in (*prefill_works(), *self.decode_works)],
            "bound_by": [{"kind": each.work.kind} | asdict(each) for each in self.bindings],
            "busy": [asdict(each) for each in self.busy],
            "machine": None if self.machine is None else self.machine.to_dict(),
        }

    def _intervals(self) -> dict[str, Any]:
        of_parts = {part.value: asdict(self.fit.intervals[part]) for part in CostPart}
        return of_parts | {
            "knee_tokens": asdict(self.fit.knee_tokens),
            "front_end_s": asdict(self.fit.front_end_s),
        }

    def _held_out(self, kind: StepKind) -> dict[str, Any]:
        errors = self.fit.errors.get(kind, ())
        span = error_span(errors)
        return {
            "steps": len(errors),
            "median_error": self.fit.held_out_error(kind),
            "log_span": None if span is None else list(span),
            "confidence": CONFIDENCE,
        }

    def _prediction(self, work: StepWork) -> dict[str, Any]:
        predicted = self.fit.predict(work)
        known = None if predicted is None else asdict(predicted)
        return {"kind": work.kind, "work": asdict(work), "predicted": known}


def prefill_works() -> list[StepWork]:
    """Steps with one prompt of various lengths."""
    return [prefilling(tokens) for tokens in PREFILL_TOKENS]


def decode_works(context_tokens: int = CONTEXTS_TOKENS[0]) -> list[StepWork]:
    """Steps with various batches at a medium context."""
    return [decoding([context_tokens] * batch) for batch in BATCHES]


def _cell(cell: Cell) -> dict[str, Any]:
    return {"kind": cell.kind, "work": asdict(cell.work), "visits": cell.visits, "off_by": cell.off_by}
