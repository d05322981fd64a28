"""The page's section on traffic: lengths, arrivals, sharing, concurrency."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from phasewise.core.units import count, number, share
from phasewise.diagnosis.analysis.window_summary import WindowSummary, WorkloadShape
from phasewise.diagnosis.analysis.workload_profile import Distribution, WorkloadProfile
from phasewise.report.markup import Html, element, together

# --- The traffic of a window in words.


def workload_in_words(summary: WindowSummary) -> str:
    """The requests' lengths and rates, as far as they were observed."""
    profile = summary.profile
    facts = _of_shape(summary.workload) if profile is None else _of_profile(profile)
    running = summary.workload.running_mean
    concurrency = () if running is None else (f"{running:.1f} running",)
    return ", ".join((*facts, *concurrency)) or "unknown"


def _of_profile(profile: WorkloadProfile) -> Iterator[str]:
    yield from _lengths("prompts", profile.prompt_tokens)
    yield from _lengths("outputs", profile.output_tokens)
    yield from _rate(profile.rate_per_s)
    yield from _reuse(profile.shared_share, profile.cached_share)


def _of_shape(shape: WorkloadShape) -> Iterator[str]:
    if shape.prompt_p50_tokens is not None:
        yield f"prompts p50 {shape.prompt_p50_tokens:.0f} p90 {shape.prompt_p90_tokens:.0f} tokens"
    if shape.output_p50_tokens is not None:
        yield f"outputs p50 {shape.output_p50_tokens:.0f} p90 {shape.output_p90_tokens:.0f} tokens"
    yield from _rate(shape.rate_per_s)
    yield from _reuse(shape.shared_share, shape.cached_share)


def _lengths(name: str, spread: Distribution | None) -> Iterator[str]:
    if spread is not None:
        yield f"{name} p50 {spread.p50:.0f} p90 {spread.p90:.0f} tokens"


def _rate(per_s: float | None) -> Iterator[str]:
    if per_s is not None:
        yield f"{number(per_s)} requests/s"


def _reuse(shared: float | None, cached: float | None) -> Iterator[str]:
    if shared is not None:
        yield f"{share(shared)} of prompt tokens repeated"
    if cached is not None:
        yield f"{share(cached)} cached"


FEW_BINS = 7


def workload_section(summary: WindowSummary) -> Html:
    """The workload in words, its implications, and histograms of its lengths."""
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
        ("How long are the prompts?", profile.prompt_tokens),
        ("How many prompt tokens were computed?", profile.uncached_tokens),
        ("How long are the answers?", profile.output_tokens),
    )
    drawn = [_spread(question, spread) for question, spread in spreads if spread is not None]
    if drawn:
        parts.append(element("div", *drawn, class_=f"grid of-{len(drawn)}"))
    if text := "; ".join(_concurrency(profile)):
        parts.append(element("p", f"{text[0].upper()}{text[1:]}.", class_="quantiles"))
    return parts


def _concurrency(profile: WorkloadProfile) -> Iterator[str]:
    if profile.concurrency_mean is not None:
        most = f", {profile.concurrency_max} at most" if profile.concurrency_max is not None else ""
        yield f"concurrency: {number(profile.concurrency_mean)} on average{most}"
    if profile.burstiness is not None:
        yield f"gaps between arrivals vary by {number(profile.burstiness)} times their mean"


def _spread(question: str, spread: Distribution) -> Html:
    quantiles = (
        ("p10", spread.p10),
        ("p50", spread.p50),
        ("p90", spread.p90),
        ("p99", spread.p99),
        ("max", spread.largest),
    )
    text = ", ".join(f"{name} {count(value)}" for name, value in quantiles if value is not None)
    return element(
        "figure",
        element("h3", question),
        *(_histogram(spread.histogram, question) if spread.histogram else ()),
        element("figcaption", f"Tokens of {count(spread.count)} requests: {text}."),
    )


def _histogram(bins: Sequence[tuple[int, int]], question: str) -> tuple[Html, Html]:
    """A bar for every power of two from the smallest to the largest, including empty ones."""
    counts = dict(bins)
    bound, last = min(counts), max(counts)
    bounds = [bound]
    while bound < last:
        bound = 2 * bound + 1
        bounds.append(bound)
    most = max(counts.values())
    bars = (
        element(
            "i",
            style=f"height:{100 * counts.get(upper, 0) / most:.1f}%",
            title=f"{upper // 2 + 1:,} to {upper:,} tokens: {counts.get(upper, 0):,} requests"
            if upper
            else f"none: {counts[0]:,} requests",
        )
        for upper in bounds
    )
    # A bar is labelled with its smallest value; of many bars every second one.
    every = 1 if len(bounds) <= FEW_BINS else 2
    names = (
        element("span", _short(upper // 2 + 1 if upper else 0) if place % every == 0 else "")
        for place, upper in enumerate(bounds)
    )
    return (
        element("div", *bars, class_="bins", role="img", aria_label=question),
        element("div", *names, class_="bin-names"),
    )


def _short(tokens: int) -> str:
    return f"{tokens // 1024}k" if tokens >= 1024 else str(tokens)
