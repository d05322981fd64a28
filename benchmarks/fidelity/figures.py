"""What clients saw, or would see: the same few figures of answers, whether measured or simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from phasewise.benchmark.workload.plan import Plan
from phasewise.core.statistics import quantile
from phasewise.core.timeline import Outcome, Timeline

TARGETS = {"itl": 0.08, "ttft_p50": 0.12, "ttft_p90": 0.20, "conversation_p50": 0.12, "tokens_per_s": 0.08}
"""The errors that are small enough; the last two are held to those of TTFT and ITL."""


@dataclass(frozen=True)
class Answer:
    """One answer: whose, when it was asked for, and when its first and last token came after that."""

    thread: int
    sent_s: float
    first_s: float
    last_s: float
    tokens: int


def measured_answers(plan: Plan, timelines: Sequence[Timeline]) -> list[Answer]:
    """The answers of a run; SystemExit if any is missing, as its figures would be of other requests."""
    thread_of = {it.index: number for number, thread in enumerate(plan.threads) for it in thread}
    asked = {it.index: it.max_tokens for it in plan.requests}
    answers = []
    for timeline in timelines:
        index = int(timeline.request_id.rpartition("-")[2])
        times_s = timeline.content_times_s
        if timeline.outcome is not Outcome.SUCCEEDED or not times_s:
            raise SystemExit(f"a request failed ({timeline.reason or timeline.outcome.value})")
        answers.append(
            Answer(thread_of[index], timeline.started_unix_s, times_s[0], times_s[-1], asked[index])
        )
    return answers


def figures_of(answers: Sequence[Answer], *, conversations: bool, closed: bool) -> dict[str, float]:
    """ITL is the mean gap; a conversation's time is from its first question to its last token."""
    ttfts_s = [it.first_s for it in answers]
    gaps = sum(it.tokens - 1 for it in answers)
    found = {
        "itl": sum(it.last_s - it.first_s for it in answers) / gaps,
        "ttft_p50": quantile(ttfts_s, 0.5),
        "ttft_p90": quantile(ttfts_s, 0.9),
    }
    if conversations:
        found["conversation_p50"] = quantile(_conversations_s(answers), 0.5)
    if closed:
        took_s = max(it.sent_s + it.last_s for it in answers) - min(it.sent_s for it in answers)
        found["tokens_per_s"] = sum(it.tokens for it in answers) / took_s
    return found


def _conversations_s(answers: Sequence[Answer]) -> list[float]:
    by_thread: dict[int, list[Answer]] = {}
    for answer in answers:
        by_thread.setdefault(answer.thread, []).append(answer)
    return [
        max(it.sent_s + it.last_s for it in turns) - min(it.sent_s for it in turns)
        for turns in by_thread.values()
    ]


def error(predicted: float, measured: float) -> float:
    """How far off."""
    return abs(predicted / measured - 1)


def repeat_error(repeats: Sequence[float]) -> float:
    """How far a run is from the others of the same workload."""
    others = [mean([*repeats[:at], *repeats[at + 1 :]]) for at in range(len(repeats))]
    return mean(error(own, other) for own, other in zip(repeats, others, strict=True))
