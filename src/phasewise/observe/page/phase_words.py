"""How requests started and how they streamed, each in a line."""

from __future__ import annotations

from phasewise.bench.page.numbers import duration
from phasewise.diagnosis.picture import StartPicture, StreamPicture


def ttft_in_words(start: StartPicture) -> str:
    """Quantiles, and how many were late or had no answer at all."""
    quantiles = (
        _quantile("p50", start.ttft_p50_s, at_least=start.ttft_p50_at_least),
        _quantile("p90", start.ttft_p90_s, at_least=start.ttft_p90_at_least),
    )
    counts = ((start.unanswered, "unanswered"), (start.unfinished, "still waiting"))
    silent = (f"{count} {how}" for count, how in counts if count)
    late = f"{start.late} of {start.requests} late"
    return f"{', '.join(quantiles)}; {', '.join((late, *silent))}"


def _quantile(name: str, seconds: float, *, at_least: bool) -> str:
    return f"{name} {'at least ' if at_least else ''}{duration(seconds)}"


def tpot_in_words(stream: StreamPicture) -> str:
    """Quantiles, how many streams were slow, and the longest that one stood still."""
    worst = f", worst gap {duration(stream.gap_max_s)}" if stream.gap_max_s is not None else ""
    quantiles = f"p50 {duration(stream.tpot_p50_s)}, p90 {duration(stream.tpot_p90_s)}"
    return f"{quantiles}; {stream.slow} of {stream.streams} slow{worst}"
