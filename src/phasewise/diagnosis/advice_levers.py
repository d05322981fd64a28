"""Fixes by an engine's levers, with values that follow from what was seen.

Each gives nothing where it is set already, or where no sane value is left. Which cause they serve is decided
in advice_start.py and advice_stream.py.
"""

from __future__ import annotations

from phasewise.diagnosis.fix import Figure, Fix, LeverChange
from phasewise.diagnosis.picture import Picture
from phasewise.diagnosis.rules.prefixes import MARKS_APART
from phasewise.diagnosis.surroundings import Crowd, EngineSurroundings
from phasewise.model.timeline import Part

DEFAULT_BUDGET_TOKENS = 2048
"""vLLM's budget of a step on most devices, where none was seen."""
SMALLEST_CHUNK_TOKENS = 128
"""A step of fewer tokens is mostly weights and overhead on every device: prompts would pay for them again and
again."""
LARGEST_CHUNK_TOKENS = 8192
"""The largest that vLLM itself chooses for a server on most devices."""
ROOM_FOR_STREAMS = 2
"""A chunk leaves a step as much room for prompts as running streams take, at least."""
GUESSED_TOKENS = 5
LONGEST_MATCH_TOKENS = 4


class Levers:
    """What can be changed about the engines of a picture. Engines of a pool are alike: the fullest counts."""

    def __init__(self, picture: Picture) -> None:
        self._picture = picture
        self._engines = picture.engines

    @property
    def heads_vary(self) -> bool:
        """Whether prompts repeat much more text than stands at their beginning."""
        use = self._picture.prefix
        return use is not None and (use.repeated or 0.0) > MARKS_APART * use.shared

    @property
    def attempts_failed(self) -> bool:
        """Whether requests lost more time in attempts that were given up than in the gateway itself."""
        start = self._picture.start
        if start is None:
            return False
        return start.seconds(Part.EARLIER_ATTEMPTS) > start.seconds(Part.GATEWAY_WAIT)

    # --- prefill ------------------------------------------------------------------------------------------

    def prefix_cache_on(self) -> Fix | None:
        """Turn the prefix cache on, unless it is."""
        told = [each.prefix_cache_on for each in self._engines] or [self._picture.workload.prefix_cache_on]
        if any(told):
            return None
        return Fix(
            what="turn the prefix cache on",
            price="next to none: cached blocks give way to running requests",
            aims_at=Figure.TTFT_P50,
            lever=LeverChange("prefix_cache", True),
            engine_flag="--enable-prefix-caching",
            fleet_line="pools: [{levers: {prefix_cache: true}}]",
        )

    def larger_chunks(self) -> Fix | None:
        """Twice the budget and more, up to what holds an ordinary prompt."""
        prompt_tokens, tokens = self._picture.workload.prompt_p50_tokens, 2 * self._budget_tokens
        while prompt_tokens is not None and tokens < min(prompt_tokens, LARGEST_CHUNK_TOKENS):
            tokens *= 2
        if tokens > LARGEST_CHUNK_TOKENS:
            return None
        return _chunks(tokens, "larger", "running streams stall for longer while a chunk is computed")

    def smaller_chunks(self) -> Fix | None:
        """A quarter of the budget, or half of it, whichever is still worth a step."""
        least = max(SMALLEST_CHUNK_TOKENS, ROOM_FOR_STREAMS * self._running_max)
        for tokens in (self._budget_tokens // 4, self._budget_tokens // 2):
            if tokens >= least:
                price = "long prompts take more steps, so their TTFT rises when they are alone"
                return _chunks(tokens, "smaller", price, Figure.ITL_P99)
        return None

    # --- decode -------------------------------------------------------------------------------------------

    def more_running(self) -> Fix | None:
        """Twice as many, or all who waited, as far as the KV cache has room for them."""
        running = self._running_max
        if not running:
            return None
        wanted = max([2 * running, *(crowd.running_max + crowd.waiting_max for crowd in self._crowds)])
        room = self._requests_that_fit
        wanted = wanted if room is None else min(wanted, room)
        if wanted <= running:
            return None
        price = "each step serves more streams and takes longer: TPOT rises"
        return _running(wanted, "let more requests run at once", price, Figure.TTFT_P50)

    def fewer_running(self) -> Fix | None:
        """Half of those that ran."""
        running = self._running_max // 2
        if running < 1:
            return None
        price = "the others wait: TTFT and throughput suffer"
        return _running(running, "let fewer requests share a step", price, Figure.TPOT_P50)

    def as_many_as_fit(self) -> Fix | None:
        """No more than the KV cache holds to their end, so that none loses its place."""
        room = self._requests_that_fit
        if room is None or not 0 < room < self._running_max:
            return None
        price = "the others wait in the queue instead: their TTFT rises"
        return _running(room, "let no more run than the KV cache holds to their end", price, Figure.TPOT_P50)

    def guesses_on(self) -> Fix | None:
        """Guess tokens by n-gram, unless tokens are guessed already."""
        if any(each.drafts is not None and each.drafts.drafts > 0 for each in self._engines):
            return None
        settings = (
            f'{{"method":"ngram","num_speculative_tokens":{GUESSED_TOKENS},'
            f'"prompt_lookup_max":{LONGEST_MATCH_TOKENS}}}'
        )
        return Fix(
            what="guess tokens ahead, where answers repeat their prompts",
            price="steps are longer, and wasted where guesses are wrong: free text gains nothing",
            aims_at=Figure.TPOT_P50,
            lever=LeverChange("speculation", GUESSED_TOKENS),
            engine_flag=f"--speculative-config '{settings}'",
            fleet_line=f"pools: [{{levers: {{speculation: {{method: ngram, tokens: {GUESSED_TOKENS}}}}}}}]",
        )

    def guesses_off(self) -> Fix | None:
        """Stop guessing, where tokens are guessed."""
        return Fix(
            what="stop guessing tokens",
            price="none, while guesses cost more steps than they save",
            aims_at=Figure.TPOT_P50,
            lever=LeverChange("speculation", None),
            engine_flag="leave --speculative-config out",
            fleet_line="pools: [{levers: {speculation: null}}]",
        )

    # --- the KV cache -------------------------------------------------------------------------------------

    def more_kv_memory(self, aims_at: Figure) -> Fix | None:
        """Twice the memory. Bytes are not in the picture, so the multiple is told."""
        tokens = self._kv_tokens
        room = "" if tokens is None else f", for {2 * tokens:,} tokens instead of {tokens:,}"
        return Fix(
            what=f"give the KV cache twice its memory{room}",
            price="memory, which is taken at start",
            aims_at=aims_at,
            lever=LeverChange("kv_memory", None, times=2.0),
            engine_flag="--kv-cache-memory-bytes, with twice the bytes of now",
            fleet_line="pools: [{levers: {kv_memory: ...}}], with twice the size of now",
        )

    def kv_in_eight_bits(self, aims_at: Figure) -> Fix | None:
        """Half the bytes per token."""
        return Fix(
            what="store the KV cache in 8 bits, so that it holds twice the tokens",
            price="some precision: check the answers; slower where the device does not compute in fp8",
            aims_at=aims_at,
            lever=LeverChange("kv_dtype", "fp8"),
            engine_flag="--kv-cache-dtype fp8",
            fleet_line="pools: [{levers: {kv_dtype: fp8}}]",
        )

    # --- more of everything -------------------------------------------------------------------------------

    def another_engine(self, aims_at: Figure = Figure.TTFT_P50) -> Fix | None:
        """One engine more than there are."""
        replicas = max(len(self._engines), 1) + 1
        return Fix(
            what=f"add an engine: {replicas} instead of {replicas - 1}",
            price="another device, and memory for another copy of the weights",
            aims_at=aims_at,
            lever=LeverChange("replicas", replicas),
            fleet_line=f"pools: [{{replicas: {replicas}}}]",
        )

    # --- what was seen ------------------------------------------------------------------------------------

    @property
    def _crowds(self) -> list[Crowd]:
        return [each.crowd for each in self._engines if each.crowd is not None]

    @property
    def _running_max(self) -> int:
        return max((crowd.running_max for crowd in self._crowds), default=0)

    @property
    def _budget_tokens(self) -> int:
        told = [each.steps.budget_tokens for each in self._engines if each.steps is not None]
        return max((tokens for tokens in told if tokens is not None), default=DEFAULT_BUDGET_TOKENS)

    @property
    def _kv_tokens(self) -> int | None:
        return _least(self._engines)

    @property
    def _requests_that_fit(self) -> int | None:
        """Of long prompts and answers: of nine in ten fewer would not do."""
        workload, kv_tokens = self._picture.workload, self._kv_tokens
        if kv_tokens is None or workload.prompt_p90_tokens is None or workload.output_p90_tokens is None:
            return None
        return int(kv_tokens // max(workload.prompt_p90_tokens + workload.output_p90_tokens, 1.0))


def _least(engines: tuple[EngineSurroundings, ...]) -> int | None:
    return min((each.kv_tokens for each in engines if each.kv_tokens is not None), default=None)


def _chunks(tokens: int, how: str, price: str, aims_at: Figure = Figure.TTFT_P50) -> Fix:
    return Fix(
        what=f"compute prompts in {how} chunks, of {tokens} tokens",
        price=price,
        aims_at=aims_at,
        lever=LeverChange("prefill_chunk_tokens", tokens),
        engine_flag=f"--max-num-batched-tokens {tokens}",
        fleet_line=f"pools: [{{levers: {{prefill_chunk_tokens: {tokens}}}}}]",
    )


def _running(running: int, what: str, price: str, aims_at: Figure) -> Fix:
    return Fix(
        what=f"{what}: {running}",
        price=price,
        aims_at=aims_at,
        lever=LeverChange("max_running", running),
        engine_flag=f"--max-num-seqs {running}",
        fleet_line=f"pools: [{{levers: {{max_running: {running}}}}}]",
    )
