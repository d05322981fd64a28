"""Fixes by an engine's levers, with values from the observed traffic.

A method returns None if the lever is set already, or if no sensible value is left.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from phasewise.core.timeline import Part
from phasewise.diagnosis.advice.fix import Figure, Fix, LeverChange
from phasewise.diagnosis.analysis.engine_load import EngineLoad
from phasewise.diagnosis.analysis.window_summary import WindowSummary
from phasewise.diagnosis.rules.prompts import MARKS_APART

DEFAULT_BUDGET_TOKENS = 2048
"""vLLM's default token budget on most devices, used if none was observed."""
SMALLEST_CHUNK_TOKENS = 128
"""A smaller step is mostly weight reads and overhead on every device."""
LARGEST_CHUNK_TOKENS = 8192
"""The largest that vLLM itself chooses for a server on most devices."""
TOKENS_PER_STREAM = 2
"""A step has at least this many tokens per running stream, so that half are left for prompts."""
LITTLE_IN_COMMON = 0.2
"""Sharing below this saves no noticeable time."""
MANY_LATE = 0.25
LEAST_KV_TIMES, MOST_KV_TIMES = 2, 8
GUESSED_TOKENS = 5


class AvailableLevers:
    """The levers of a summary's engines. Engines of a pool are alike, so the most loaded one counts."""

    def __init__(self, summary: WindowSummary) -> None:
        self._summary = summary
        self._engines = summary.engines

    @property
    def heads_vary(self) -> bool:
        """Whether prompts repeat much more text than their shared prefixes."""
        use = self._summary.prefix
        return use is not None and (use.repeated or 0.0) > MARKS_APART * use.shared

    @property
    def prompts_start_late(self) -> bool:
        """Whether more requests start late than a fix of the streams may ignore."""
        start = self._summary.start
        return start is not None and start.late > MANY_LATE * start.requests

    @property
    def attempts_failed(self) -> bool:
        """Whether requests lost more time in failed attempts than in the gateway itself."""
        start = self._summary.start
        if start is None:
            return False
        return start.seconds(Part.EARLIER_ATTEMPTS) > start.seconds(Part.GATEWAY_WAIT)

    @property
    def rejections(self) -> tuple[str, ...]:
        return tuple(reason for reason, _ in self._summary.rejections)

    # --- prefill ------------------------------------------------------------------------------------------

    def prefix_cache_on(self) -> Fix | None:
        reported = [each.prefix_cache_on for each in self._engines] or [
            self._summary.workload.prefix_cache_on
        ]
        if any(reported):
            return None
        return Fix(
            what="turn prefix caching on",
            price="almost none: running requests take cached blocks when they need them",
            aims_at=Figure.TTFT_P50,
            lever=LeverChange("prefix_cache", True),
            fleet_line="pools: [{levers: {prefix_cache: true}}]",
        )

    def prefix_cache_on_trial(self) -> Fix | None:
        """Turn prefix caching on if it is off, and prompts share prefixes or may do so."""
        use = self._summary.prefix
        little = use is not None and max(use.shared, use.repeated or 0.0) < LITTLE_IN_COMMON
        off = any(each.prefix_cache_on is False for each in self._engines)
        return self.prefix_cache_on() if off and not little else None

    def larger_chunks(self) -> Fix | None:
        """A budget of at least twice the present one, up to the size of a typical prompt."""
        prompt_tokens, tokens = self._summary.workload.prompt_p50_tokens, 2 * self._budget_tokens
        while prompt_tokens is not None and tokens < min(prompt_tokens, LARGEST_CHUNK_TOKENS):
            tokens *= 2
        if tokens > LARGEST_CHUNK_TOKENS:
            return None
        return _chunks(tokens, "larger", "running streams stall longer while a chunk is computed")

    def smaller_chunks(self) -> Fix | None:
        """A quarter of the budget, or half of it if a quarter is too small; less than the longest prompt,
        which would not be cut otherwise.
        """
        least = max(SMALLEST_CHUNK_TOKENS, TOKENS_PER_STREAM * self._running_max)
        whole = self._longest_prompt_tokens
        for tokens in (self._budget_tokens // 4, self._budget_tokens // 2, *_halves(whole)):
            if least <= tokens < (whole or self._budget_tokens):
                price = "long prompts take more steps, so their TTFT rises"
                return _chunks(tokens, "smaller", price, Figure.ITL_P99)
        return None

    @property
    def _longest_prompt_tokens(self) -> int | None:
        """The most tokens that one prompt had to have computed; None if lengths are unknown."""
        profile = self._summary.profile
        lengths = None if profile is None else profile.uncached_tokens or profile.prompt_tokens
        if lengths is None:
            return None
        return round(lengths.p99 if lengths.largest is None else lengths.largest)

    # --- decode -------------------------------------------------------------------------------------------

    def more_running(self) -> Fix | None:
        """Twice as many, or enough for all waiting requests, limited by the KV cache."""
        running = self._running_max
        if not running:
            return None
        wanted = max(
            [
                2 * running,
                *(engine_load.running_max + engine_load.waiting_max for engine_load in self._engine_loads),
            ]
        )
        fit = self._requests_that_fit
        wanted = wanted if fit is None else min(wanted, fit)
        if wanted <= running:
            return None
        price = "each step serves more streams and takes longer: TPOT rises"
        return _running(wanted, "let more requests run at once", price, Figure.TTFT_P50)

    def fewer_running(self) -> Fix | None:
        """A cap at half of the requests that ran."""
        running = self._running_max // 2
        if running < 1:
            return None
        price = "the others wait: TTFT rises and throughput falls"
        fix = _running(running, "let fewer requests share a step", price, Figure.TPOT_P50)
        return replace(fix, risky=True)

    def as_many_as_fit(self) -> Fix | None:
        """A cap at what the KV cache holds to the end, so that no request is preempted."""
        fit = self._requests_that_fit
        if fit is None or not 0 < fit < self._running_max:
            return None
        price = "the others wait in the queue instead: their TTFT rises"
        return _running(
            fit, "run only as many requests as the KV cache holds to their end", price, Figure.TPOT_P50
        )

    def guesses_on(self) -> Fix | None:
        """Turn on n-gram speculative decoding, unless it is on."""
        if any(each.drafts is not None and each.drafts.drafts > 0 for each in self._engines):
            return None
        return Fix(
            what="use speculative decoding (n-gram), if answers repeat parts of their prompts",
            price="steps are longer, and wasted where drafts are rejected: free text gains nothing",
            aims_at=Figure.TPOT_P50,
            lever=LeverChange("speculation", GUESSED_TOKENS),
            fleet_line=f"pools: [{{levers: {{speculation: {{method: ngram, tokens: {GUESSED_TOKENS}}}}}}}]",
        )

    def guesses_off(self) -> Fix | None:
        return Fix(
            what="turn off speculative decoding",
            price="none, as long as drafts cost more than they save",
            aims_at=Figure.TPOT_P50,
            lever=LeverChange("speculation", None),
            fleet_line="pools: [{levers: {speculation: null}}]",
        )

    # --- the KV cache -------------------------------------------------------------------------------------

    def more_kv_cache(self, aims_at: Figure) -> Fix | None:
        """Enough for all that ran and waited. The summary has no bytes, so the fix is a factor."""
        tokens, times = self._kv_tokens, self._kv_times
        capacity = "" if tokens is None else f", for {times * tokens:,} tokens instead of {tokens:,}"
        return Fix(
            what=f"give the KV cache {times} times the memory{capacity}",
            price="memory, reserved at startup",
            aims_at=aims_at,
            lever=LeverChange("kv_cache_memory_bytes", None, times=float(times)),
            fleet_line=f"pools: [{{levers: {{kv_cache_memory_bytes: ...}}}}], {times} times the present one",
        )

    @property
    def _kv_times(self) -> int:
        fit = self._requests_that_fit
        wanted = max((each.running_max + each.waiting_max for each in self._engine_loads), default=0)
        if not fit or not wanted:
            return LEAST_KV_TIMES
        return min(max(LEAST_KV_TIMES, ceil(wanted / fit)), MOST_KV_TIMES)

    def kv_in_eight_bits(self, aims_at: Figure) -> Fix | None:
        return Fix(
            what="store the KV cache in 8 bits, so that it holds twice the tokens",
            price="some precision: check the answers; slower on devices without fp8",
            aims_at=aims_at,
            lever=LeverChange("kv_dtype", "fp8"),
            fleet_line="pools: [{levers: {kv_dtype: fp8}}]",
        )

    # --- more of everything -------------------------------------------------------------------------------

    def another_engine(self, aims_at: Figure = Figure.TTFT_P50) -> Fix | None:
        replicas = max(len(self._engines), 1) + 1
        return Fix(
            what=f"add an engine: {replicas} instead of {replicas - 1}",
            price="another device, with memory for another copy of the weights",
            aims_at=aims_at,
            lever=LeverChange("replicas", replicas),
            fleet_line=f"pools: [{{replicas: {replicas}}}]",
        )

    def a_thread_per_core(self) -> Fix | None:
        cores = min((each.cores for each in self._engines if each.cores), default=None)
        if cores is None:
            return None
        return Fix(
            what=f"compute on {cores} {'thread' if cores == 1 else 'threads'}, one per core",
            price="none",
            aims_at=Figure.TPOT_P50,
            setting=LeverChange("threads", cores),
        )

    # --- what was seen ------------------------------------------------------------------------------------

    @property
    def _engine_loads(self) -> list[EngineLoad]:
        return [each.engine_load for each in self._engines if each.engine_load is not None]

    @property
    def _running_max(self) -> int:
        return max((engine_load.running_max for engine_load in self._engine_loads), default=0)

    @property
    def _budget_tokens(self) -> int:
        set_to = [each.settings.get("max_num_batched_tokens") for each in self._engines]
        reported = set_to + [each.steps.budget_tokens for each in self._engines if each.steps is not None]
        return max((tokens for tokens in reported if tokens is not None), default=DEFAULT_BUDGET_TOKENS)

    @property
    def _kv_tokens(self) -> int | None:
        return min((each.kv_tokens for each in self._engines if each.kv_tokens is not None), default=None)

    @property
    def _requests_that_fit(self) -> int | None:
        """By the p90 of prompts and answers, so that it suffices for nine requests in ten."""
        workload, kv_tokens = self._summary.workload, self._kv_tokens
        if kv_tokens is None or workload.prompt_p90_tokens is None or workload.output_p90_tokens is None:
            return None
        return int(kv_tokens // max(workload.prompt_p90_tokens + workload.output_p90_tokens, 1.0))


def _chunks(tokens: int, how: str, price: str, aims_at: Figure = Figure.TTFT_P50) -> Fix:
    return Fix(
        what=f"compute prompts in {how} chunks, of {tokens} tokens",
        price=price,
        aims_at=aims_at,
        lever=LeverChange("max_num_batched_tokens", tokens),
        fleet_line=f"pools: [{{levers: {{max_num_batched_tokens: {tokens}}}}}]",
    )


def _running(running: int, what: str, price: str, aims_at: Figure) -> Fix:
    return Fix(
        what=f"{what}: {running}",
        price=price,
        aims_at=aims_at,
        lever=LeverChange("max_num_seqs", running),
        fleet_line=f"pools: [{{levers: {{max_num_seqs: {running}}}}}]",
    )


def _halves(tokens: int | None) -> tuple[int, ...]:
    """A half and a quarter, as powers of two."""
    if not tokens:
        return ()
    whole = 1 << (tokens.bit_length() - 1)
    return whole // 2, whole // 4
