"""The notes under every table: how it was judged, the noise floor, paging, what is missing. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from phasewise.core.units import count, share
from phasewise.experiments.levers.agenda import floor_reason
from phasewise.experiments.levers.cases import RESTARTED
from phasewise.experiments.levers.catalogue import SHOWN, Case
from phasewise.experiments.levers.findings import LABELS, interval_in_words
from phasewise.experiments.levers.results import PagingResult, Results, RowResult
from phasewise.loadgen.statistics.comparison import MetricVerdict

MARGIN_WORDS = "a change within a tenth is called no effect"


def paging_sentence(paging: PagingResult | None) -> str:
    """What paging saves of the KV cache; empty if it was not measured."""
    if paging is None:
        return ""
    return (
        f"Paged KV: a running request uses {count(paging.used_tokens)} tokens and holds "
        f"{count(paging.paged_tokens)} in blocks of {paging.block_tokens} ({share(paging.paged_waste)} "
        f"unused, {_range(paging.paged_waste_range)} over {paging.samples} samples). Reserving the "
        f"longest context of {paging.reserved_tokens:,} would leave {share(paging.reserved_waste)} unused "
        f"({_range(paging.reserved_waste_range)}): {paging.fits_reserved} requests would fit instead of "
        f"{paging.fits_paged}."
    )


def reading_notes(cases: Sequence[Case], results: Results) -> tuple[str, ...]:
    """What a reader must know to judge the table."""
    return (
        "Better, worse: the interval excludes zero. Within one row all intervals hold together with 95%; "
        f"{MARGIN_WORDS}; everything else is inconclusive. Intervals are for these two processes: another "
        "start of either engine may differ a little.",
        *_chance(sum(1 for _ in floors(cases, results))),
        *floor_notes(cases, results),
        *_backend(results),
        *(f"Not measured: {case.title}: {why}." for case, why in _uncounted(cases, results)),
    )


def floor_notes(cases: Sequence[Case], results: Results) -> tuple[str, ...]:
    """How much the base engine differs from itself, by workload, or why that is unknown."""
    missing = (
        (name, results.not_measured.get(floor_reason(key))) for key, name in _floor_names(cases).items()
    )
    return (
        *(f"Noise floor, {name}: {floor_in_words(floor)}." for name, floor in floors(cases, results)),
        *(f"Noise floor, {name}: not measured: {why}." for name, why in missing if why),
    )


def floors(cases: Sequence[Case], results: Results) -> Iterator[tuple[str, RowResult]]:
    """The base engine against itself, as far as it was measured, by workload and with another start."""
    names = _floor_names(cases)
    return ((name, results.floors[key]) for key, name in names.items() if key in results.floors)


def _floor_names(cases: Sequence[Case]) -> dict[str, str]:
    workloads = {row.workload.key: row.workload.name for case in cases for row in case.rows}
    return workloads | {RESTARTED: "another start of the same engine"}


def floor_in_words(floor: RowResult) -> str:
    """The same engine measured against itself: how wide its intervals are, and whether it differs."""
    parts = []
    for effect in floor.effects:
        if effect.metric in SHOWN and effect.low is not None and effect.high is not None:
            odd = (
                ", DIFFERS FROM ITSELF"
                if effect.verdict in {MetricVerdict.BETTER, MetricVerdict.WORSE}
                else ""
            )
            parts.append(f"{LABELS[effect.metric]} {interval_in_words(effect)}{odd}")
    return "; ".join(parts) or "nothing could be compared"


def _chance(floors_measured: int) -> tuple[str, ...]:
    if not floors_measured:
        return ()
    return (
        f"Noise floors measured: {floors_measured}, each the base engine against itself. About one floor in "
        "twenty may differ by chance alone.",
    )


def _backend(results: Results) -> tuple[str, ...]:
    if results.attention_backend:
        return (f"Attention is computed by {results.attention_backend}, as the engine's log names it.",)
    if results.circumstances.device == "cpu":
        return ("Attention back end: no choice here. vLLM's CPU platform has CPU_ATTN alone.",)
    return ()


def _uncounted(cases: Sequence[Case], results: Results) -> Iterator[tuple[Case, str]]:
    """Cases without rows give the reason here; the others give it row by row."""
    counted = (case for case in cases if not case.rows and case.name in results.not_measured)
    return ((case, results.not_measured[case.name]) for case in counted)


def _range(bounds: tuple[float, float]) -> str:
    return f"{share(bounds[0])} to {share(bounds[1])}"
