"""What surrounds a verdict, on the screen and the page: the traffic of its window, and the engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from phasewise.core.units import NONE, count, duration, number, share
from phasewise.diagnosis.analysis.engine_load import EngineLoad, EngineSurroundings, StepShape
from phasewise.diagnosis.analysis.window_summary import WindowSummary
from phasewise.diagnosis.analysis.workload_profile import Distribution, WorkloadProfile
from phasewise.report.markup import Html, element, table, together

# --- The traffic of a window in words.


def workload_in_words(summary: WindowSummary) -> str:
    """The requests' lengths and rates, as far as they were observed."""
    shape, profile = summary.workload, summary.profile
    lengths: Sequence[tuple[str, float | None, float | None]] = [
        ("prompts", shape.prompt_p50_tokens, shape.prompt_p90_tokens),
        ("outputs", shape.output_p50_tokens, shape.output_p90_tokens),
    ]
    if profile is not None:
        spreads = (("prompts", profile.prompt_tokens), ("outputs", profile.output_tokens))
        lengths = [(name, spread.p50, spread.p90) for name, spread in spreads if spread is not None]
    traffic = shape if profile is None else profile
    facts = [
        f"{name} p50 {p50:.0f} p90 {p90:.0f} tokens"
        for name, p50, p90 in lengths
        if p50 is not None and p90 is not None
    ]
    if traffic.rate_per_s is not None:
        facts.append(f"{number(traffic.rate_per_s)} requests/s")
    if traffic.shared_share is not None:
        facts.append(f"{share(traffic.shared_share)} of prompt tokens repeated")
    if traffic.cached_share is not None:
        facts.append(f"{share(traffic.cached_share)} cached")
    if shape.running_mean is not None:
        facts.append(f"{shape.running_mean:.1f} running")
    return ", ".join(facts) or "unknown"


def workload_section(summary: WindowSummary) -> Html:
    """The workload in words, its implications, and the quantiles of its lengths."""
    text = workload_in_words(summary)
    parts = [element("p", f"{text[0].upper()}{text[1:]}.")]
    if summary.profile is not None:
        parts += _profile(summary.profile)
    return together(parts)


def _profile(profile: WorkloadProfile) -> list[Html]:
    parts = []
    if profile.implications:
        implied = (element("li", sentence) for sentence in profile.implications)
        parts.append(element("ul", *implied, class_="implied"))
    spreads = (
        ("prompts", profile.prompt_tokens),
        ("of them computed", profile.uncached_tokens),
        ("answers", profile.output_tokens),
    )
    rows = [(name, *map(count, _quantiles(spread))) for name, spread in spreads if spread is not None]
    if rows:
        parts.append(table(("tokens", "requests", "p10", "p50", "p90", "p99", "max"), rows, narrow=True))
    if text := "; ".join(_concurrency(profile)):
        parts.append(element("p", f"{text[0].upper()}{text[1:]}.", class_="quantiles"))
    return parts


def _concurrency(profile: WorkloadProfile) -> Iterator[str]:
    if profile.concurrency_mean is not None:
        most = f", {profile.concurrency_max} at most" if profile.concurrency_max is not None else ""
        yield f"concurrency: {number(profile.concurrency_mean)} on average{most}"
    if profile.burstiness is not None:
        yield f"gaps between arrivals vary by {number(profile.burstiness)} times their mean"


def _quantiles(spread: Distribution) -> tuple[float | None, ...]:
    return (spread.count, spread.p10, spread.p50, spread.p90, spread.p99, spread.largest)


# --- Many engines in a few lines: what they have in common, and the names of outliers.

FAR = 3.0
"""An engine is an outlier if its distance from the median is this many times the median distance."""
NAMED = 3
"""At most this many engines are named; the others are counted."""
FEWEST = 3
"""Among fewer engines than this, none is an outlier."""


@dataclass(frozen=True, slots=True)
class _Gauge:
    """A reading that should be similar across engines. `least` is the smallest difference to report."""

    words: str
    read: Callable[[EngineSurroundings], float | None]
    least: float
    as_share: bool = False

    def say(self, value: float) -> str:
        return f"{value:.0%}" if self.as_share else f"{value:.0f}"

    def span(self, values: Sequence[float]) -> str:
        low, high = self.say(min(values)), self.say(max(values))
        return low if low == high else f"{low.rstrip('%')}-{high}"


GAUGES = (
    _Gauge("waiting", lambda engine: engine.engine_load.waiting_mean if engine.engine_load else None, 2.0),
    _Gauge("running", lambda engine: engine.engine_load.running_mean if engine.engine_load else None, 4.0),
    _Gauge(
        "of KV cache used",
        lambda engine: engine.engine_load.kv_usage_max if engine.engine_load else None,
        0.3,
        as_share=True,
    ),
    _Gauge("preemptions", lambda engine: engine.preemptions, 3.0),
    _Gauge("of the time short of CPU", lambda engine: engine.cpu_wait_share, 0.1, as_share=True),
)


def engines_in_words(engines: Sequence[EngineSurroundings]) -> tuple[str, ...]:
    """A line on the engines, and one per outlier; nothing without readings."""
    known = {
        gauge.words: [(engine, value) for engine in engines if (value := gauge.read(engine)) is not None]
        for gauge in GAUGES
    }
    text = [
        f"{gauge.span([value for _, value in known[gauge.words]])} {gauge.words}"
        for gauge in GAUGES
        if any(value > 0 for _, value in known[gauge.words])
    ]
    if not text:
        return ()
    odd = [line for gauge in GAUGES for line in _outliers(gauge, known[gauge.words])]
    many = f"{len(engines)} engines" if len(engines) > 1 else engines[0].name
    more = (f"and {len(odd) - NAMED} more outliers",) if len(odd) > NAMED else ()
    return (f"{many}: {', '.join(text)}", *odd[:NAMED], *more)


def _outliers(gauge: _Gauge, known: Sequence[tuple[EngineSurroundings, float]]) -> list[str]:
    if len(known) < FEWEST:
        return []
    middle = median(value for _, value in known)
    usual = median(abs(value - middle) for _, value in known)
    far = max(FAR * usual, gauge.least)
    apart = sorted((item for item in known if abs(item[1] - middle) > far), key=lambda item: -item[1])
    others = [value for _, value in known if abs(value - middle) <= far]
    return [
        f"{engine.name}: {gauge.say(value)} {gauge.words}, the others {gauge.span(others)}"
        for engine, value in apart
    ]


SIDE_BY_SIDE = 4
"""A table has a column for each engine, if there are no more than this."""


def engines_table(engines: Sequence[EngineSurroundings]) -> Html:
    """The engines' readings; a reading that no engine has is left out.

    A few engines are shown side by side, many one below the other with common readings shown once.
    """
    described = [_engine(engine) for engine in engines]
    rows = {
        name: cells
        for name in dict.fromkeys(name for each in described for name in each)
        if set(cells := tuple(each.get(name, NONE) for each in described)) != {NONE}
    }
    if len(engines) <= SIDE_BY_SIDE:
        head = ("", *(engine.name for engine in engines))
        return table(head, [(name, *cells) for name, cells in rows.items()], narrow=True)
    alike = ", ".join(f"{name} {cells[0]}" for name, cells in rows.items() if len(set(cells)) == 1)
    own = {name: cells for name, cells in rows.items() if len(set(cells)) > 1}
    by_engine = zip((engine.name for engine in engines), *own.values(), strict=True)
    common = [element("p", f"All alike: {alike}.")] if alike else []
    return together((*common, table(("engine", *own), by_engine)))


def _engine(engine: EngineSurroundings) -> dict[str, str]:
    drafts, prefix_cache = engine.drafts, {True: "on", False: "off", None: NONE}[engine.prefix_cache_on]
    accepted = drafts.accepted_tokens / drafts.drafted_tokens if drafts and drafts.drafted_tokens else None
    return {
        "requests": count(engine.requests),
        **({} if engine.engine_load is None else _engine_load(engine.engine_load)),
        "KV tokens": count(engine.kv_tokens),
        "preemptions": count(engine.preemptions),
        "prefix cache": prefix_cache,
        **({} if engine.steps is None else _steps(engine.steps)),
        "drafts accepted": share(accepted),
        "age": duration(engine.age_s),
        "front end, cores": number(engine.front_end_cores),
        "waited for a CPU": share(engine.cpu_wait_share),
        "host busy": share(engine.host_busy_share),
        "round trip": duration(engine.round_trip_s),
    }


def _engine_load(load: EngineLoad) -> dict[str, str]:
    return {
        "running, mean": number(load.running_mean),
        "running, most": count(load.running_max),
        "waiting, mean": number(load.waiting_mean),
        "waiting, most": count(load.waiting_max),
        "KV used, most": share(load.kv_usage_max),
    }


def _steps(steps: StepShape) -> dict[str, str]:
    return {
        "steps": count(steps.steps),
        "busy": share(steps.busy_share),
        "chunk, p50": count(steps.chunk_p50_tokens),
        "token budget": count(steps.budget_tokens),
        "decode step, p50": duration(steps.decode_step_p50_s),
    }
