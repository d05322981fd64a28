"""The traffic of a window in words: lengths, arrivals, sharing, company."""

from __future__ import annotations

from collections.abc import Iterator

from phasewise.diagnosis.picture import Picture, WorkloadShape
from phasewise.diagnosis.workload_profile import Distribution, WorkloadProfile


def workload_in_words(picture: Picture) -> str:
    """What the requests looked like, as far as anybody could tell."""
    profile = picture.profile
    facts = _of_shape(picture.workload) if profile is None else _of_profile(profile)
    running = picture.workload.running_mean
    company = () if running is None else (f"{running:.1f} running",)
    return ", ".join((*facts, *company)) or "unknown"


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
        yield f"{per_s:.2g} requests/s"


def _reuse(shared: float | None, cached: float | None) -> Iterator[str]:
    if shared is not None:
        yield f"{shared:.0%} of prompt tokens seen before"
    if cached is not None:
        yield f"{cached:.0%} cached"
