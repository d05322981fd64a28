"""Prompts that repeat what came before and are computed again: one cause, by where the reuse was lost."""

from __future__ import annotations

from dataclasses import dataclass

from phasewise.diagnosis.cause import Cause, Confidence
from phasewise.diagnosis.finding import Fact, FactSource
from phasewise.diagnosis.picture import Picture, PrefixUse
from phasewise.diagnosis.rules.case import WAITING, Claim, StartCase
from phasewise.diagnosis.rules.engines import prompt_work_share
from phasewise.diagnosis.rules.words import ms, percent
from phasewise.diagnosis.seen_by import clock_source
from phasewise.model.timeline import Part

REUSE_GAP = 0.2
"""Marks stand apart and caches keep whole blocks: smaller differences may be only that."""
MARKS_APART = 1.25
"""A beginning may reach nearly to the next mark, which is this many times further on."""


@dataclass(frozen=True, slots=True)
class _Loss:
    """Reuse that was lost at one place: what it is called, how much of all prompt tokens, what shows it."""

    cause: Cause
    share: float
    words: str
    refuted_by: str


def prefix_not_reused(case: StartCase) -> Claim | None:
    """Prompts share what the engine computes again and again."""
    use = _use_of(case.picture)
    if use is None or use.cached is None or use.cached >= 1.0:
        return None
    loss = _loss_of(use, use.cached, _cache_is_off(case.picture))
    if loss is None:
        return None
    # Only what was not cached was computed, and takes the time.
    again = min(1.0, loss.share / (1.0 - use.cached))
    taken = case.account.take(again, Part.PREFILL, Part.PREFILL_OTHERS)
    taken += case.account.take(again * (prompt_work_share(case.picture) or 0.0), *WAITING)
    return Claim(
        loss.cause,
        taken,
        (
            Fact(loss.words, clock_source(case.picture.seen_by)),
            Fact(f"{percent(use.cached)} came from the prefix cache", FactSource.ENGINE_REPORT),
            Fact(
                f"computing it again takes {ms(taken.seconds)} of TTFT, the wait for others' included",
                FactSource.DERIVED,
            ),
        ),
        loss.refuted_by,
        Confidence.LOW if case.picture.prefix is None else Confidence.HIGH,
    )


def _use_of(picture: Picture) -> PrefixUse | None:
    """How prompts repeat; where only one figure of it is known, nothing is said to be lost on the way."""
    if picture.prefix is not None:
        known = picture.prefix
        cached = picture.workload.cached_share if known.cached is None else known.cached
        return PrefixUse(known.shared, known.shared_here, known.kept, cached, known.repeated)
    shared, cached = picture.workload.shared_share, picture.workload.cached_share
    return None if shared is None else PrefixUse(shared, shared, shared, cached)


def _cache_is_off(picture: Picture) -> bool:
    said = [engine.prefix_cache_on for engine in picture.engines if engine.prefix_cache_on is not None]
    return not any(said) if said else picture.workload.prefix_cache_on is False


def _loss_of(use: PrefixUse, cached: float, cache_is_off: bool) -> _Loss | None:
    """Where most of the reuse is lost; None where little is."""
    if cache_is_off:
        off = _off(use, cached)
        return off if off.share >= REUSE_GAP else None
    losses = (_scattered(use), _evicted(use), _salted(use, cached), _other_head(use, cached))
    largest = max(losses, key=lambda loss: loss.share)
    return largest if largest.share >= REUSE_GAP else None


def _off(use: PrefixUse, cached: float) -> _Loss:
    return _Loss(
        Cause.PREFIX_CACHE_OFF,
        use.shared_here - cached,
        f"{percent(use.shared_here)} of the prompt tokens stood at the beginning of an earlier prompt, and "
        "the engine says that its prefix cache is off",
        "the second of two equal long prompts starts no sooner with the prefix cache on",
    )


def _scattered(use: PrefixUse) -> _Loss:
    return _Loss(
        Cause.PREFIX_SCATTERED,
        use.shared - use.shared_here,
        f"{percent(use.shared)} of the prompt tokens stood at the beginning of an earlier prompt, "
        f"{percent(use.shared_here)} of one that went to the same engine",
        "no more comes from the cache when equal beginnings go to the same engine",
    )


def _evicted(use: PrefixUse) -> _Loss:
    return _Loss(
        Cause.PREFIX_EVICTED,
        use.shared_here - use.kept,
        f"{percent(use.shared_here)} of the prompt tokens stood at the beginning of an earlier prompt, "
        f"{percent(use.kept)} of one so recent that the KV cache could still hold it",
        "no more comes from the cache with twice the KV memory",
    )


def _salted(use: PrefixUse, cached: float) -> _Loss:
    return _Loss(
        Cause.PREFIX_SALTED,
        use.kept - cached,
        f"{percent(use.kept)} of the prompt tokens should still have been cached: the same text, under "
        "another salt or with something before it that the engine sees and we do not",
        "no more comes from the cache when equal prompts carry the same salt and the same template",
    )


def _other_head(use: PrefixUse, cached: float) -> _Loss:
    repeated = use.shared if use.repeated is None else use.repeated
    return _Loss(
        Cause.PREFIX_SALTED,
        repeated - max(MARKS_APART * use.shared, cached),
        f"{percent(repeated)} of the prompts' text had been sent before, {percent(use.shared)} at the "
        "beginning of a prompt: something that varies stands before what is shared",
        "no more comes from the cache when what varies is moved behind what is shared",
    )
