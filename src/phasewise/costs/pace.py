"""How fast one engine is in each phase, as far as its own answers told. Learning it is pace_book.py's."""

from __future__ import annotations

from phasewise.model.noun import noun


@noun
class EnginePace:
    """What an engine takes: to read a prompt, to write a token beside others, to fetch KV.

    Reading takes `read_floor_s`, and for each token `read_s_per_token` and, for each token before it,
    `read_s_per_pair`. A step that writes one token for each of n streams takes `step_s` + n x
    `step_s_per_stream`. Fetching takes `fetch_floor_s` and `fetch_s_per_token`.
    """

    read_floor_s: float
    read_s_per_token: float
    read_s_per_pair: float
    step_s: float
    step_s_per_stream: float
    fetch_floor_s: float = 0.0
    fetch_s_per_token: float = 0.0

    def read_s(self, tokens: int, cached_tokens: int = 0) -> float:
        """Seconds to compute a prompt of so many tokens, of which some are cached."""
        new = max(1, tokens - cached_tokens)
        pairs = new * cached_tokens + new * (new + 1) / 2
        return self.read_floor_s + self.read_s_per_token * new + self.read_s_per_pair * pairs

    def token_s(self, streams: int) -> float:
        """Seconds per token with so many streams in the batch."""
        return self.step_s + self.step_s_per_stream * streams

    def fetch_s(self, tokens: int) -> float:
        """Seconds to fetch the KV of so many tokens, the wait for a step among them."""
        return self.fetch_floor_s + self.fetch_s_per_token * tokens
