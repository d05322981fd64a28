"""Claims weighed by removal: a replay of the window without a suspect shows how much of the loss it is.

Rules claim time where it was spent: a request that waits for a slot waits because of the cap, or because so
many others came that no cap would help. Only without the cap does it show. Causes outside the engine's usual
steps (pauses, the network) are not replayed, and keep what they claimed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from phasewise.core.units import share as in_percent
from phasewise.diagnosis.analysis.window_summary import Removals, Rest, replay_agrees
from phasewise.diagnosis.finding import Cause, Confidence, Fact, FactSource, Phase
from phasewise.diagnosis.rules.case import Claim, Taken

WITHOUT: Mapping[Cause, str] = {
    Cause.BATCH_CAP_LOW: "without a limit of running requests",
    Cause.KV_EXHAUSTED: "with an ample KV cache",
    Cause.BURSTS: "with the same requests at independent times",
    Cause.CHUNKS_STALL: "with smaller chunks, or without the few long prompts",
    Cause.CHUNKS_SMALL: "with larger chunks",
    Cause.UNEVEN_LOAD: "with requests at the engine that has the fewest",
    Cause.PREFIX_CACHE_OFF: "without computing the same text again",
    Cause.PREFIX_SALTED: "without computing the same text again",
    Cause.PREFIX_SCATTERED: "without computing the same text again",
    Cause.PREFIX_EVICTED: "without computing the same text again",
    Cause.LONG_PROMPTS: "without the few long prompts",
    Cause.ENGINE_STARVED: "with its cores for the engine alone",
}
_STEPS = frozenset({Cause.DECODE_FLOOR, Cause.DECODE_WEIGHTS, Cause.DECODE_OVERHEAD, Cause.DECODE_KV_READS})
REST: Mapping[tuple[Rest, Phase], tuple[Cause, frozenset[Cause]]] = {
    (Rest.LOAD, Phase.START): (Cause.OVERLOAD, frozenset({Cause.OVERLOAD})),
    (Rest.LOAD, Phase.STREAM): (Cause.OVERLOAD, frozenset({Cause.OVERLOAD, Cause.BATCH_CAP_HIGH})),
    (Rest.PROMPTS, Phase.START): (Cause.LONG_PROMPTS, frozenset({Cause.LONG_PROMPTS})),
    (Rest.PROMPTS, Phase.STREAM): (Cause.CHUNKS_STALL, frozenset({Cause.CHUNKS_STALL})),
    (Rest.STEPS, Phase.START): (Cause.LONG_PROMPTS, frozenset({Cause.LONG_PROMPTS})),
    (Rest.STEPS, Phase.STREAM): (Cause.DECODE_FLOOR, _STEPS),
}
"""The names of what is left in each phase: the one if no rule has claimed it, and all of them."""
TESTED = frozenset({*WITHOUT, *(cause for _, causes in REST.values() for cause in causes)})
WORTH_A_CLAIM = 0.25
SPARES_MUCH = 0.4


@dataclass(frozen=True, slots=True)
class Weighed:
    """Claims and their shares of the loss, the share of what no rule has a name for, and whether they are
    from a replay.
    """

    claims: tuple[Claim, ...]
    shares: tuple[float, ...]
    unknown: float = 0.0
    replayed: bool = False


def weigh(
    claims: Sequence[Claim], shares: Sequence[float], removals: Removals | None, phase: Phase
) -> Weighed:
    """The claims with what the replay shows of each; as they are if it shows nothing."""
    starved = sum(it for claim, it in zip(claims, shares, strict=True) if claim.cause is Cause.ENGINE_STARVED)
    every_share = {} if removals is None else _replayed(removals, phase, starved)
    if all(claim.cause is not Cause.KV_EXHAUSTED for claim in claims):
        # Only where its cache is full can an engine lack space in it.
        every_share.pop(Cause.KV_EXHAUSTED, None)
    untested = frozenset() if removals is None else removals.untested
    if Cause.ENGINE_STARVED not in every_share:
        untested |= {Cause.ENGINE_STARVED}
    tested = [claim.cause in TESTED - untested for claim in claims]
    part = sum(share for share, known in zip(shares, tested, strict=True) if known)
    if removals is None or phase not in removals.shares or not _credible(removals, phase, part):
        return _not_replayed(claims, shares, removals, phase)
    whole = max(1.0, sum(every_share.values()))
    unknown = every_share.get(None, 0.0) / whole
    by_cause = {cause: it / whole for cause, it in every_share.items() if cause is not None}
    left = 1.0 - unknown - sum(by_cause.values())
    made = {claim.cause for claim in claims}
    added = [
        _claim(cause, phase)
        for cause, it in by_cause.items()
        if cause not in made and part * it >= WORTH_A_CLAIM
    ]
    usual, names = REST[removals.rest, phase]
    # With a rival that only the prompts' text would show, nobody can remove it here.
    rest = {
        claim.cause: share
        for claim, share in zip(claims, shares, strict=True)
        if claim.cause in names or claim.rival is not None
    }
    if not sum(rest.values()):
        rest = {usual: 1.0}
        if usual not in made and part * left >= WORTH_A_CLAIM:
            added.append(_claim(usual, phase))
    rest_share = sum(rest.values())
    every = (*claims, *added)
    new = []
    for index, claim in enumerate(every):
        if index < len(claims) and not tested[index]:
            new.append(shares[index])
            continue
        own = by_cause.get(claim.cause, 0.0) + left * rest.get(claim.cause, 0.0) / rest_share
        new.append(part * own)
    facts = tuple(_with_fact(claim, by_cause.get(claim.cause)) for claim in every)
    return Weighed(facts, tuple(new), part * unknown, replayed=True)


def _replayed(removals: Removals, phase: Phase, claimed: float) -> dict[Cause | None, float]:
    """The share of each cause in the replays. A starved core is one of them only where cores of its own would
    have been enough, or where it `claimed` much and they would have spared much: else there is too much load
    even so, which comes first.
    """
    found = {cause: max(0.0, it) for cause, it in removals.shares.get(phase, {}).items()}
    too_much_load = removals.rest is Rest.LOAD and 1.0 - sum(found.values()) >= WORTH_A_CLAIM
    if too_much_load and not _spares_much(removals, phase, claimed):
        found.pop(Cause.ENGINE_STARVED, None)
    return found


def _not_replayed(
    claims: Sequence[Claim], shares: Sequence[float], removals: Removals | None, phase: Phase
) -> Weighed:
    """The claims as they are, if the replay shows nothing, except those on steps that take long for another
    reason.
    """
    if phase is Phase.START or removals is None or not removals.in_stretches:
        return _without_overload(claims, shares, removals, phase)
    in_steps = [claim.cause in _STEPS or claim.cause is Cause.BATCH_CAP_HIGH for claim in claims]
    kept = tuple(0.0 if is_it else share for is_it, share in zip(in_steps, shares, strict=True))
    return Weighed(tuple(claims), kept, sum(shares) - sum(kept))


def _without_overload(
    claims: Sequence[Claim], shares: Sequence[float], removals: Removals | None, phase: Phase
) -> Weighed:
    """The claims as they are, except overload if the same requests start in time in the replay: then it is
    not their number that holds them back, but the starved core, if there is one and it would spare much.
    """
    if phase is not Phase.START or removals is None or not removals.starts_in_time:
        return Weighed(tuple(claims), tuple(shares))
    kept = tuple(
        0.0 if claim.cause is Cause.OVERLOAD else share for claim, share in zip(claims, shares, strict=True)
    )
    freed = sum(shares) - sum(kept)
    starved = [claim.cause is Cause.ENGINE_STARVED for claim in claims]
    claimed = sum(share for share, is_it in zip(shares, starved, strict=True) if is_it)
    if _spares_much(removals, phase, claimed):
        return Weighed(
            tuple(claims), tuple(it + freed * is_it for it, is_it in zip(kept, starved, strict=True))
        )
    return Weighed(tuple(claims), kept, freed)


def _spares_much(removals: Removals, phase: Phase, claimed: float) -> bool:
    """Whether cores of its own would spare an engine much, which waited for them as long."""
    spared = removals.shares.get(phase, {}).get(Cause.ENGINE_STARVED, 0.0)
    return claimed >= WORTH_A_CLAIM and spared >= SPARES_MUCH


def _credible(removals: Removals, phase: Phase, part: float) -> bool:
    return replay_agrees(part * removals.measured_s.get(phase, 0.0), removals.lost_s[phase])


def _claim(cause: Cause, phase: Phase) -> Claim:
    refuted = {
        Phase.START: "TTFT stays as high",
        Phase.STREAM: "a token takes as long",
    }[phase]
    return Claim(cause, Taken(), (), f"{refuted} {WITHOUT.get(cause, 'at half the load')}", Confidence.MEDIUM)


def _with_fact(claim: Claim, share: float | None) -> Claim:
    if share is None or claim.cause not in WITHOUT:
        return claim
    words = f"{WITHOUT[claim.cause]}, a replay of the window loses {in_percent(share)} less in this phase"
    return replace(claim, facts=(*claim.facts, Fact(words, FactSource.FIT)))
