"""How fast one engine is in each phase, as far as its own answers told. Learning it is pace_book.py's."""

from __future__ import annotations

from phasewise.model.noun import noun


@noun
class EnginePace:
    """What an engine takes: to read a prompt, to write a token beside others, to fetch KV.

    Reading takes `read_s_per_token` for each token and `read_s_per_pair` for each token before it, but never
    less than `read_floor_s`: a step costs what its weights cost, however little it carries. A step that
    writes one token for each of n streams takes `step_s` + n x `step_s_per_stream`. Fetching takes
    `fetch_floor_s` and `fetch_s_per_token`; where it is not `fetch_known`, no fetching was ever timed.
    """

    read_floor_s: float
    read_s_per_token: float
    read_s_per_pair: float
    step_s: float
    step_s_per_stream: float
    fetch_floor_s: float = 0.0
    fetch_s_per_token: float = 0.0
    fetch_known: bool = False

    def read_s(self, tokens: float, cached_tokens: float = 0) -> float:
        """Seconds to compute a prompt of so many tokens, of which some are cached."""
        # Every placement asks this of every worker, so the pairs are written out.
        new = max(1.0, tokens - cached_tokens)
        per_token_s = self.read_s_per_token + self.read_s_per_pair * (cached_tokens + (new + 1.0) / 2.0)
        return max(self.read_floor_s, new * per_token_s)

    def token_s(self, streams: float) -> float:
        """Seconds per token with so many streams in the batch."""
        return self.step_s + self.step_s_per_stream * streams

    def fetch_s(self, tokens: float) -> float:
        """Seconds to fetch the KV of so many tokens, the wait for a step among them."""
        return self.fetch_floor_s + self.fetch_s_per_token * tokens


def token_pairs(new_tokens: float, cached_tokens: float) -> float:
    """How many tokens the new ones look at: all that are cached, and those up to themselves."""
    return new_tokens * cached_tokens + new_tokens * (new_tokens + 1) / 2
