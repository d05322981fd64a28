"""The traffic's section of the page: what it looked like, what that implies, how its lengths are spread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from phasewise.bench.page.markup import Html, element, together
from phasewise.bench.page.numbers import count, number
from phasewise.diagnosis.picture import Picture
from phasewise.diagnosis.workload_profile import Distribution, WorkloadProfile
from phasewise.observe.page.workload_words import workload_in_words

FEW_BINS = 7


def workload_section(picture: Picture) -> Html:
    """The workload: first in words, then what it implies, then its lengths drawn."""
    told = workload_in_words(picture)
    parts = [element("p", f"{told[0].upper()}{told[1:]}.")]
    if picture.profile is not None:
        parts += _profile(picture.profile)
    return together(parts)


def _profile(profile: WorkloadProfile) -> list[Html]:
    parts = []
    if profile.implications:
        implied = (element("li", sentence) for sentence in profile.implications)
        parts.append(element("ul", *implied, class_="implied"))
    spreads = (
        ("How long are the prompts?", profile.prompt_tokens),
        ("How much of them was computed?", profile.uncached_tokens),
        ("How long are the answers?", profile.output_tokens),
    )
    drawn = [_spread(question, spread) for question, spread in spreads if spread is not None]
    if drawn:
        parts.append(element("div", *drawn, class_=f"grid of-{len(drawn)}"))
    if told := "; ".join(_company(profile)):
        parts.append(element("p", f"{told[0].upper()}{told[1:]}.", class_="quantiles"))
    return parts


def _company(profile: WorkloadProfile) -> Iterator[str]:
    if profile.concurrency_mean is not None:
        most = f", {profile.concurrency_max} at most" if profile.concurrency_max is not None else ""
        yield f"requests at once: {number(profile.concurrency_mean)} in the mean{most}"
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
    told = ", ".join(f"{name} {count(value)}" for name, value in quantiles if value is not None)
    return element(
        "figure",
        element("h3", question),
        *(_histogram(spread.histogram, question) if spread.histogram else ()),
        element("figcaption", f"Tokens of {count(spread.count)} requests: {told}."),
    )


def _histogram(bins: Sequence[tuple[int, int]], question: str) -> tuple[Html, Html]:
    """Bars for every power of two between the smallest and the largest, empty ones too."""
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
    # A bar is named by its smallest value, every second one where there are many.
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
