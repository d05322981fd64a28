"""Rules for prompts that take long to compute: long, cut into small chunks, or computed again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from phasewise.core.timeline import Part, Source
from phasewise.costs.fit.step import StepCost, prefilling
from phasewise.diagnosis.analysis.engine_load import SeenBy
from phasewise.diagnosis.analysis.prefix_use import PrefixUse
from phasewise.diagnosis.analysis.stall_causes import StallCause
from phasewise.diagnosis.analysis.window_summary import WindowSummary
from phasewise.diagnosis.finding import Cause, Confidence, Fact, FactSource
from phasewise.diagnosis.rules.case import (
    WAITING,
    Claim,
    StartCase,
    StreamCase,
    Taken,
    TokenPart,
    engine_loads,
    ms,
    percent,
    prompt_work_share,
    queue_relief,
    running_mean,
    stall_part,
)
from phasewise.diagnosis.rules.queueing import grows

LARGER_CHUNK = 4
"""Waste is judged against chunks this many times larger,"""
USUAL_CHUNK_TOKENS = 512
"""or of this many tokens, which is beyond the flat part of a step's cost on any engine."""
FLAT_TOKENS = 128
"""Up to about this many tokens, a step costs the same on any machine."""
FLAT_WITHIN_STEP = 2
"""The same of a setting that cuts prompts within a step: on a CPU, llama.cpp's tokens cost 1.9 times as much
one by one as in large pieces, 1.3 times in twos, 1.2 times in eights."""
CUT_AT_BUDGET = 0.8
"""Steps with at least this share of prompt tokens were limited by the budget, not by the prompt's end."""
WASTED_SHARE = 0.3
"""Less waste than this is normal."""
MANY_STEPS = 8.0
"""Without a step record, prompts are known to be cut only if they take this many steps,"""
SEEN_IN_GAPS = 0.015
"""and if so many of all gaps between tokens have a prompt of another request in them,"""
ALONE = 0.5
"""which takes more requests than this at a time."""
FEW_AHEAD = 2.0
"""A wait behind at most this many requests is due to their length, not their number."""
LONG_OF_OBJECTIVE = 0.5
"""A prompt is long if computing it alone takes this share of the objective."""


@dataclass(frozen=True, slots=True)
class _Chunking:
    """How a typical prompt was cut: into steps, or by a setting within them."""

    prompt_tokens: int
    chunk_tokens: int
    budget_tokens: int
    within_steps: bool = False

    @property
    def source(self) -> FactSource:
        return FactSource.HOST if self.within_steps else FactSource.STEP_RECORD

    @property
    def chunks(self) -> int:
        return ceil(self.prompt_tokens / self.chunk_tokens)

    @property
    def larger_tokens(self) -> int:
        return max(LARGER_CHUNK * self.chunk_tokens, USUAL_CHUNK_TOKENS)


def chunks_small(case: StartCase) -> Claim | None:
    """Each chunk pays for a whole step, and there are too many of them."""
    cut = _chunking(case.summary)
    if cut is None or cut.chunks < LARGER_CHUNK / 2:
        return None
    waste, source = _wasted_share(case, cut)
    if waste < WASTED_SHARE:
        return None
    taken = case.account.take(waste, Part.PREFILL, Part.PREFILL_OTHERS)
    taken += case.account.take(_queue_relief(case.summary, waste), *WAITING)
    return Claim(
        Cause.CHUNKS_SMALL,
        taken,
        (
            Fact(
                f"steps hold at most {cut.budget_tokens} tokens, so a prompt of {cut.prompt_tokens} uncached "
                f"tokens takes about {cut.chunks} of them",
                cut.source,
            ),
            Fact(f"chunks of {cut.larger_tokens} would save {percent(waste)} of its prefill", source),
            Fact(f"that is {ms(taken.seconds)} of TTFT", FactSource.DERIVED),
        ),
        f"prefill takes as long with chunks of {cut.larger_tokens} tokens",
    )


def chunks_small_by_gaps(case: StartCase) -> Claim | None:
    """The same without a record of steps: prompts take long, but no stream that runs beside them stalls."""
    summary, stream = case.summary, case.summary.stream
    workload = summary.workload
    if summary.seen_by is not SeenBy.COUNTERS or stream is None or not stream.gap_p99_s:
        return None
    prefill_s = case.start.seconds(Part.PREFILL, Part.PREFILL_OTHERS)
    prompt_tokens = (workload.prompt_p50_tokens or 0.0) * (1 - (workload.cached_share or 0.0))
    # The number of gaps into which another request's prefill falls, if each takes one step.
    beside = case.start.requests * max(0.0, (running_mean(summary) or 0.0) - ALONE)
    gaps = stream.streams * (workload.output_p50_tokens or 0.0)
    steps = prefill_s / stream.gap_p99_s
    needed = ceil(prompt_tokens / (2 * FLAT_TOKENS))
    if prompt_tokens < 2 * FLAT_TOKENS or not gaps or beside / gaps < SEEN_IN_GAPS:
        return None
    if steps < MANY_STEPS or needed / steps > 1 - WASTED_SHARE:
        return None
    waste = 1.0 - needed / steps
    taken = case.account.take(waste, Part.PREFILL, Part.PREFILL_OTHERS)
    taken += case.account.take(_queue_relief(summary, waste), *WAITING)
    return Claim(
        Cause.CHUNKS_SMALL,
        taken,
        (
            Fact(
                f"computing a prompt takes {ms(prefill_s)}, but 99% of the gaps between tokens beside it are "
                f"below {ms(stream.gap_p99_s)}: prompts of about {prompt_tokens:.0f} uncached tokens take "
                f"{steps:.0f} steps or more",
                FactSource.COUNTERS,
            ),
            Fact(f"larger chunks would save about {percent(waste)} of it", FactSource.DERIVED),
        ),
        "prefill takes as long with larger chunks",
        Confidence.MEDIUM,
    )


def _chunking(summary: WindowSummary) -> _Chunking | None:
    shapes = [engine.steps for engine in summary.engines if engine.steps is not None]
    cut = [
        (shape.budget_tokens, shape.chunk_p50_tokens)
        for shape in shapes
        if shape.budget_tokens is not None and shape.chunk_p50_tokens
    ]
    prompt_tokens = (summary.workload.prompt_p50_tokens or 0.0) * (1 - (summary.workload.cached_share or 0.0))
    if prompt_tokens < 1:
        return None
    set_to = [engine.settings.get("max_num_batched_tokens") for engine in summary.engines]
    if tokens := min(filter(None, set_to), default=0):
        return _Chunking(ceil(prompt_tokens), tokens, tokens, within_steps=True)
    if not cut:
        return None
    budget, chunk = min(cut)
    # Streams that run beside a prompt take their tokens of the budget first.
    if chunk + (running_mean(summary) or 0.0) < CUT_AT_BUDGET * budget:
        return None
    return _Chunking(ceil(prompt_tokens), max(1, round(chunk)), budget)


def _wasted_share(case: StartCase, cut: _Chunking) -> tuple[float, FactSource]:
    """The share of a prompt's time that larger chunks would save, and the source."""
    fit = case.summary.fit
    if fit is not None and not cut.within_steps and fit.predict(prefilling(cut.larger_tokens)) is not None:
        now_s = _prefill_s(fit.cost, cut.prompt_tokens, cut.chunk_tokens)
        then_s = _prefill_s(fit.cost, cut.prompt_tokens, cut.larger_tokens)
        return max(0.0, 1.0 - then_s / now_s), FactSource.FIT
    flat = FLAT_WITHIN_STEP if cut.within_steps else FLAT_TOKENS
    needed = ceil(cut.prompt_tokens / max(flat, cut.chunk_tokens))
    return 1.0 - needed / cut.chunks, cut.source


def _prefill_s(cost: StepCost, prompt_tokens: int, chunk_tokens: int) -> float:
    """The total cost of a prompt's chunks."""
    begins = range(0, prompt_tokens, chunk_tokens)
    return sum(
        cost(prefilling(min(chunk_tokens, prompt_tokens - begin), context_tokens=begin)) for begin in begins
    )


def _queue_relief(summary: WindowSummary, wasted: float) -> float:
    """The share of the waiting that is due to work on prompts of which this share is wasted."""
    return queue_relief(summary, wasted * (prompt_work_share(summary) or 0.0))


def long_prompts(case: StartCase) -> Claim | None:
    """The prompt's own tokens take the time, and those of the few before it."""
    start, workload = case.start, case.summary.workload
    own_s = case.account.seconds(Part.PREFILL)
    taken = case.account.take(1.0, Part.PREFILL)
    few = case.account.seconds(Part.PREFILL_OTHERS) <= FEW_AHEAD * own_s and _few_wait(case.summary)
    if few and own_s >= LONG_OF_OBJECTIVE * case.slo.ttft_s:
        behind = prompt_work_share(case.summary) or 0.0
        taken += case.account.take(behind, *WAITING, Part.PREFILL_OTHERS)
    by_steps = any(part.part is Part.PREFILL and part.source is Source.STEP_RECORD for part in start.parts)
    whose = "the prompt's own tokens" if by_steps else "the prompt (own and others', not separable)"
    source = FactSource.STEP_RECORD if by_steps else FactSource.ENGINE_REPORT
    facts = [Fact(f"computing {whose} takes {ms(own_s)} on average", source)]
    if taken.seconds > own_s:
        waited_s = taken.seconds - own_s
        facts.append(Fact(f"waiting for a few other requests' prefill takes {ms(waited_s)}", source))
    if workload.prompt_p50_tokens is not None and workload.prompt_p90_tokens is not None:
        cached = "" if workload.cached_share is None else f", {percent(workload.cached_share)} cached"
        facts.append(
            Fact(
                f"prompts have p50 {workload.prompt_p50_tokens:.0f}, p90 {workload.prompt_p90_tokens:.0f} "
                f"tokens{cached}",
                FactSource.ENGINE_REPORT,
            )
        )
    claim = Claim(Cause.LONG_PROMPTS, taken, tuple(facts), "TTFT does not fall with a shorter prompt")
    return with_uncached_rival(claim, case.summary)


def _few_wait(summary: WindowSummary) -> bool:
    """Whether the engine has few requests at a time, and their number does not grow."""
    known = engine_loads(summary)
    return bool(known) and all(
        engine_load.waiting_mean <= FEW_AHEAD and not grows(engine_load) for engine_load in known
    )


# --- Prompts that repeat earlier ones and are computed again: the cause is where the reuse was lost.

ALIKE_TOKENS = 200
"""Shorter prompts have little to share."""
ALIKE_SPREAD = 1.6
"""Buckets of a histogram are this coarse: lengths that differ by less may be equal."""
NEVER_CACHED = 0.05
ALIKE_REQUESTS = 4
REUSE_GAP = 0.2
"""Marks and cache blocks are coarse: smaller differences may be rounding."""
MARKS_APART = 1.25
"""A prefix may extend nearly to the next mark, which is this many times as far."""


@dataclass(frozen=True, slots=True)
class _Loss:
    """Reuse that was lost for one reason: its cause, its share of all prompt tokens, its evidence."""

    cause: Cause
    share: float
    words: str
    refuted_by: str


def prefix_not_reused(case: StartCase) -> Claim | None:
    """Prompts share text that the engine computes again."""
    lost = _lost_reuse(case.summary)
    if lost is None:
        return None
    taken = case.account.take(lost.again, Part.PREFILL, Part.PREFILL_OTHERS)
    taken += case.account.take(_queue_relief(case.summary, lost.again), *WAITING)
    cost = f"computing it again takes {ms(taken.seconds)} of TTFT, including the wait for other requests"
    return lost.claim(case.summary, taken, cost)


def prefix_not_reused_stream(case: StreamCase) -> Claim | None:
    """The same prompts, computed again in the steps of running streams."""
    lost = _lost_reuse(case.summary)
    if lost is None:
        return None
    taken = case.account.take(lost.again, TokenPart.PROMPTS, stall_part(StallCause.PREFILL_CHUNK))
    return lost.claim(
        case.summary, taken, f"computing it again adds {ms(taken.seconds)} to a slow stream's token"
    )


@dataclass(frozen=True, slots=True)
class _LostReuse:
    """Where reuse was lost, and the share of the computed prompt tokens that were computed again."""

    loss: _Loss
    cached: float
    again: float
    sure: Confidence

    def claim(self, summary: WindowSummary, taken: Taken, cost: str) -> Claim:
        return Claim(
            self.loss.cause,
            taken,
            (
                Fact(self.loss.words, summary.seen_by.clock),
                Fact(f"{percent(self.cached)} came from the prefix cache", FactSource.ENGINE_REPORT),
                Fact(cost, FactSource.DERIVED),
            ),
            self.loss.refuted_by,
            self.sure,
        )


def _lost_reuse(summary: WindowSummary) -> _LostReuse | None:
    use = _use_of(summary)
    if use is None or use.cached is None or use.cached >= 1.0:
        return None
    loss = _loss_of(use, use.cached, _cache_is_off(summary))
    if loss is None:
        return None
    # Only what was not cached was computed, and takes the time.
    again = min(1.0, loss.share / (1.0 - use.cached))
    return _LostReuse(loss, use.cached, again, Confidence.LOW if summary.prefix is None else Confidence.HIGH)


def _may_repeat(summary: WindowSummary) -> bool:
    """Whether only an engine is seen, with prompts of about one length of which nothing is ever cached."""
    workload, cached, off = summary.workload, summary.workload.cached_share, _cache_is_off(summary)
    p50, p90 = workload.prompt_p50_tokens, workload.prompt_p90_tokens
    if not summary.seen_by.is_within_engine or p50 is None or p90 is None or (cached is None and not off):
        return False
    alike = p50 >= ALIKE_TOKENS and p90 <= ALIKE_SPREAD * p50 and workload.requests >= ALIKE_REQUESTS
    return alike and (cached or 0.0) <= NEVER_CACHED


def with_uncached_rival(claim: Claim, summary: WindowSummary) -> Claim:
    """The claim that prompts take the time, with its rival where only an engine is seen: prompts of about one
    length, of which nothing is ever found in the prefix cache.

    Programs write prompts, and those of one length often begin with one text; only their text would show it.
    """
    workload, cached, off = summary.workload, summary.workload.cached_share, _cache_is_off(summary)
    p50, p90 = workload.prompt_p50_tokens, workload.prompt_p90_tokens
    if not _may_repeat(summary):
        return claim
    found = f"{percent(cached or 0.0)} of their tokens came from the prefix cache"
    words = f"prompts are of about one length (p50 {p50:.0f}, p90 {p90:.0f} tokens), and {found}"
    words += ", which is off" if off else ""
    return replace(
        claim,
        facts=(*claim.facts, Fact(words, FactSource.COUNTERS)),
        refuted_by="prompts have no beginning in common: a gateway, or a look at their text, shows it",
        at_most=Confidence.LOW if claim.at_most is Confidence.LOW else Confidence.MEDIUM,
        rival=Cause.PREFIX_CACHE_OFF if off else Cause.PREFIX_SALTED,
    )


def _use_of(summary: WindowSummary) -> PrefixUse | None:
    """How prompts repeat; if only one figure is known, no reuse counts as lost."""
    if summary.prefix is not None:
        known = summary.prefix
        cached = summary.workload.cached_share if known.cached is None else known.cached
        return PrefixUse(known.shared, known.shared_here, known.kept, cached, known.repeated)
    shared, cached = summary.workload.shared_share, summary.workload.cached_share
    return None if shared is None else PrefixUse(shared, shared, shared, cached)


def _cache_is_off(summary: WindowSummary) -> bool:
    said = [engine.prefix_cache_on for engine in summary.engines if engine.prefix_cache_on is not None]
    return not any(said) if said else summary.workload.prefix_cache_on is False


def _loss_of(use: PrefixUse, cached: float, cache_is_off: bool) -> _Loss | None:
    """Where most of the reuse is lost; None if little is."""
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
        f"{percent(use.shared_here)} of the prompt tokens are a prefix of an earlier prompt, and "
        "the engine reports that prefix caching is off",
        "the second of two equal long prompts starts no sooner with prefix caching on",
    )


def _scattered(use: PrefixUse) -> _Loss:
    return _Loss(
        Cause.PREFIX_SCATTERED,
        use.shared - use.shared_here,
        f"{percent(use.shared)} of the prompt tokens are a prefix of an earlier prompt, "
        f"{percent(use.shared_here)} of one that went to the same engine",
        "no more tokens come from the cache when equal prefixes go to the same engine",
    )


def _evicted(use: PrefixUse) -> _Loss:
    return _Loss(
        Cause.PREFIX_EVICTED,
        use.shared_here - use.kept,
        f"{percent(use.shared_here)} of the prompt tokens are a prefix of an earlier prompt, "
        f"{percent(use.kept)} of one so recent that the KV cache could still hold it",
        "no more tokens come from the cache with twice the KV cache",
    )


def _salted(use: PrefixUse, cached: float) -> _Loss:
    return _Loss(
        Cause.PREFIX_SALTED,
        use.kept - cached,
        f"{percent(use.kept)} of the prompt tokens should still have been cached: the same text, with "
        "another cache salt or after something that only the engine sees",
        "no more tokens come from the cache when equal prompts have the same salt and the same template",
    )


def _other_head(use: PrefixUse, cached: float) -> _Loss:
    repeated = use.shared if use.repeated is None else use.repeated
    return _Loss(
        Cause.PREFIX_SALTED,
        repeated - max(MARKS_APART * use.shared, cached),
        f"{percent(repeated)} of the prompts' text had been sent before, {percent(use.shared)} at the "
        "beginning of a prompt: a varying part comes before the shared part",
        "no more tokens come from the cache when the varying part is moved behind the shared part",
    )


# --- Prompts that are computed twice because their KV is not transferred.


def kv_not_transferred(case: StartCase) -> Claim | None:
    """Decode engines compute prompts that prefill engines have computed already."""
    use = case.summary.kv_transfer
    if use is None or not use.engines:
        return None
    taken = case.account.take_seconds(
        use.again_s / max(1, case.start.requests), Part.PREFILL, Part.PREFILL_OTHERS
    )
    return Claim(
        Cause.KV_NOT_TRANSFERRED,
        taken,
        (
            Fact(
                f"{use.requests} requests with {use.expected_tokens} prompt tokens were disaggregated, and "
                f"the KV of {percent(use.came_tokens / use.expected_tokens)} of them arrived",
                FactSource.COUNTERS,
            ),
            Fact(
                f"it does not arrive at {', '.join(use.engines)}",
                FactSource.COUNTERS,
            ),
            Fact(f"computing them a second time takes {ms(taken.seconds)} of TTFT", FactSource.ENGINE_REPORT),
        ),
        "`phasewise check` finds no problem with any pair",
    )
