"""Loads and workloads as a sentence would name them."""

from __future__ import annotations

from phasewise.benchmark.workload.arrivals import ClosedLoop, Load, OpenLoop, Spacing
from phasewise.benchmark.workload.drafts import Written
from phasewise.benchmark.workload.plan import PlanSpec
from phasewise.benchmark.workload.presets import Lengths, Shape
from phasewise.benchmark.workload.traces import Trace
from phasewise.core.units import share, significant


def load_in_words(load: Load, *, conversations: bool = False) -> str:
    """A load in a few words: `2 req/s`, `8 at once`.

    With `conversations` the load counts conversations, not turns.
    """
    if isinstance(load, ClosedLoop):
        return f"{load.concurrency}{' conversations' if conversations else ''} at once"
    if isinstance(load, OpenLoop):
        what = "conversations" if conversations else "req"
        return f"{significant(load.rate_per_s)} {what}/s{_spacing_in_words(load)}"
    return f"the trace's times, {load.speed:g}x"


def _spacing_in_words(load: OpenLoop) -> str:
    if load.spacing is Spacing.POISSON:
        return ""
    bursts = f", burstiness {load.burstiness:g}" if load.spacing is Spacing.GAMMA else ""
    return f" ({load.spacing.value}{bursts})"


def workload_in_words(spec: PlanSpec, shape: Shape | None = None) -> str:
    """The workload of a run: lengths, shared prefixes, turns.

    A plan's own `shape` takes precedence over the specification's: it is limited to the model's context.
    """
    if isinstance(spec.source, Trace):
        return f"the trace {spec.source.name}"
    if isinstance(spec.source, Written):
        return f"{_written_in_words(spec.source)}, outputs of {_lengths_in_words(spec.source.output)} tokens"
    shape = shape or spec.source
    parts = [
        f"prompts of {_lengths_in_words(shape.prompt)} tokens",
        f"outputs of {_lengths_in_words(shape.output)}",
    ]
    if shape.shared_prefix_tokens:
        several = (
            f"one of {shape.shared_prefixes} system prompts"
            if shape.shared_prefixes > 1
            else "a system prompt"
        )
        parts.append(f"{share(shape.shared_share)} with {several} of {shape.shared_prefix_tokens} tokens")
    if spec.conversations is not None:
        parts.append(f"conversations of {spec.conversations.turns} turns")
    return ", ".join(parts)


def _written_in_words(written: Written) -> str:
    many = f"{len(written.prompts)} written prompts" if len(written.prompts) > 1 else "a written prompt"
    return f"{many} ({written.about})"


def _lengths_in_words(lengths: Lengths) -> str:
    if lengths.spread == 0:
        return f"{lengths.median_tokens:,}"
    return f"about {lengths.median_tokens:,} ({lengths.low_tokens:,} to {lengths.high_tokens:,})"
