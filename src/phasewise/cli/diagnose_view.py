"""A verdict on one screen, readable without colour."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import fill, wrap

from rich.console import Console
from rich.text import Text

from phasewise.diagnosis.fixes import Fix
from phasewise.diagnosis.picture import Picture, StartPicture, StreamPicture, WorkloadShape
from phasewise.diagnosis.verdict import Ruling, Verdict
from phasewise.model.latency import PartTime
from phasewise.model.slo import Slo
from phasewise.model.timeline import Part, Source

SCREEN_CELLS = 100
BAR_CELLS = 20
LABEL_CELLS = 25
HEADLINES = {
    Ruling.SLOW_TO_START: ("SLOW TO START", "bold red"),
    Ruling.SLOW_TO_STREAM: ("SLOW TO STREAM", "bold red"),
    Ruling.FAILING: ("REQUESTS FAIL", "bold red"),
    Ruling.HEALTHY: ("HEALTHY", "bold green"),
    Ruling.TOO_LITTLE_SEEN: ("TOO LITTLE SEEN TO SAY", "bold yellow"),
}
PART_LABELS = {
    Part.CLIENT_LAG: "generator lag",
    Part.GATEWAY_WAIT: "gateway",
    Part.EARLIER_ATTEMPTS: "earlier attempts",
    Part.STEP_IN_FLIGHT: "waiting for running step",
    Part.ENGINE_QUEUE: "engine queue",
    Part.PREFILL: "prefill, own tokens",
    Part.PREFILL_OTHERS: "prefill, others' tokens",
    Part.HAND_OVER: "KV hand-over",
}


def show(console: Console, verdict: Verdict, subject: str) -> None:
    """Print the whole verdict, wrapped to the screen but never wider than is pleasant to read."""
    width = min(console.width, SCREEN_CELLS)
    for line in _lines(verdict, subject, width):
        console.print(line, soft_wrap=True)


def _lines(verdict: Verdict, subject: str, width: int) -> Iterator[Text]:
    picture = verdict.picture
    yield _headline(verdict)
    yield Text(
        f"{subject}, {_outcomes(picture)} in {picture.window_s:.0f} s, seen by {picture.seen_by}", "dim"
    )
    yield Text()
    yield from _fact("workload", _workload(picture.workload), width)
    yield from _fact("objective", f"{_objective(verdict.slo)}; --slo sets another", width)
    if picture.start is not None:
        yield from _start_lines(picture.start)
    if picture.stream is not None:
        yield from _stream_lines(picture.stream)
    for title, items in _conclusions(verdict):
        yield from _bullets(title, items, width)


def _headline(verdict: Verdict) -> Text:
    title, style = HEADLINES[verdict.ruling]
    line = Text(title, style)
    if verdict.top is not None:
        line.append(f": {verdict.top.cause.value.replace('_', ' ')}", "bold")
        line.append(f" (confidence {verdict.top.confidence})", "dim")
    if verdict.also_slow is not None:
        line.append(f"; also {verdict.also_slow.value.replace('_', ' ')}")
    return line


def _outcomes(picture: Picture) -> str:
    return ", ".join(f"{count} {name}" for name, count in picture.outcomes) or "no requests"


def _objective(slo: Slo) -> str:
    return f"TTFT {_ms(slo.ttft_s)}, TPOT {_ms(slo.tpot_s)}"


def _workload(shape: WorkloadShape) -> str:
    facts = []
    if shape.prompt_p50_tokens is not None:
        facts.append(f"prompts p50 {shape.prompt_p50_tokens:.0f} p90 {shape.prompt_p90_tokens:.0f} tokens")
    if shape.output_p50_tokens is not None:
        facts.append(f"outputs p50 {shape.output_p50_tokens:.0f} p90 {shape.output_p90_tokens:.0f}")
    if shape.shared_share is not None:
        facts.append(f"{shape.shared_share:.0%} of prompt tokens seen before")
    if shape.cached_share is not None:
        facts.append(f"{shape.cached_share:.0%} cached")
    if shape.running_mean is not None:
        facts.append(f"{shape.running_mean:.1f} running")
    return ", ".join(facts) or "unknown"


def _start_lines(start: StartPicture) -> Iterator[Text]:
    silent = f", {start.unanswered} unanswered" if start.unanswered else ""
    late = f"{start.late} of {start.requests} late{silent}"
    yield Text()
    yield _title("Time to first token", f"p50 {_ms(start.ttft_p50_s)}, p90 {_ms(start.ttft_p90_s)}; {late}")
    for entry in start.parts:
        yield _bar(_label(entry), entry.seconds, start.parts_mean_s, entry.source.replace("_", " "))
    yield _bar("residual", start.residual_s, start.parts_mean_s, "unexplained")


def _label(entry: PartTime) -> str:
    # Only the step record tells a prefill's own tokens from those of others in the same steps.
    if entry.part is Part.PREFILL and entry.source is not Source.STEP_RECORD:
        return "prefill, whosever tokens"
    return PART_LABELS[entry.part]


def _stream_lines(stream: StreamPicture) -> Iterator[Text]:
    slow = f"{stream.slow} of {stream.streams} slow"
    worst = f"; worst gap {_ms(stream.gap_max_s)}" if stream.gap_max_s is not None else ""
    yield Text()
    yield _title(
        "Time per output token", f"p50 {_ms(stream.tpot_p50_s)}, p90 {_ms(stream.tpot_p90_s)}; {slow}{worst}"
    )
    parts = (
        (
            "decode steps",
            stream.step_s,
            "step record" if stream.chunk_excess_s is not None else "engine report",
        ),
        ("others' prompts in steps", stream.chunk_excess_s, "step record"),
        ("residual", stream.residual_s, "unexplained"),
    )
    for label, seconds, source in parts:
        if seconds is not None:
            yield _bar(label, seconds, stream.tpot_mean_s, source)


def _conclusions(verdict: Verdict) -> Iterator[tuple[str, tuple[str, ...]]]:
    if verdict.ruling is Ruling.TOO_LITTLE_SEEN:
        yield "Next", ("send streamed requests while this runs, or add --probe to let us send a few",)
    if verdict.ruling is Ruling.FAILING:
        yield "Next", ("those that were answered were fast: find out why the others were not",)
    if verdict.ruling is Ruling.HEALTHY:
        yield "Next", (_all_is_well(verdict.picture),)
    if verdict.ruling in {Ruling.SLOW_TO_START, Ruling.SLOW_TO_STREAM} and verdict.top is None:
        yield "Why", ("no rule explains it from what was seen; what is missing stands below",)
    if verdict.top is not None and verdict.advice is not None:
        yield "Why", (*verdict.top.evidence, f"refuted if {verdict.top.refuted_by}")
        yield "Next", tuple(_fix(fix) for fix in verdict.advice.fixes)
        yield "Would not help", verdict.advice.would_not_help
    yield "Not known from here", verdict.picture.not_known


def _all_is_well(picture: Picture) -> str:
    if picture.start is None or picture.stream is None:
        unseen = "the start" if picture.start is None else "streaming"
        return f"nothing for what was seen; {unseen} was not"
    return "nothing: both phases meet their objective"


def _fix(fix: Fix) -> str:
    how = "; ".join(filter(None, (fix.engine_flag, fix.fleet_line and f"fleet file: {fix.fleet_line}")))
    return f"{fix.what}{f' [{how}]' if how else ''}. Price: {fix.price}"


def _bullets(title: str, items: tuple[str, ...], width: int) -> Iterator[Text]:
    if not items:
        return
    yield Text()
    yield Text(title, "bold")
    for item in items:
        yield Text(fill(item, width, initial_indent="  - ", subsequent_indent="    ", break_on_hyphens=False))


def _bar(label: str, seconds: float, whole_s: float, source: str) -> Text:
    share = seconds / whole_s if whole_s > 0 else 0.0
    cells = round(min(max(share, 0.0), 1.0) * BAR_CELLS)
    line = Text(f"  {label:<{LABEL_CELLS}}")
    line.append("█" * cells, "red" if share >= 0.5 else "cyan")
    line.append(" " * (BAR_CELLS - cells) + f" {_ms(seconds):>9} {share:>5.0%}  ")
    line.append(source, "dim")
    return line


def _title(name: str, rest: str) -> Text:
    return Text.assemble((name, "bold"), f"  {rest}")


def _fact(name: str, value: str, width: int) -> Iterator[Text]:
    lines = wrap(value, width - 11)
    yield Text.assemble((f"{name:<11}", "dim"), lines[0])
    yield from (Text(" " * 11 + line) for line in lines[1:])


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return "unknown"
    return f"{seconds * 1000:.0f} ms" if abs(seconds) < 10 else f"{seconds:.1f} s"
