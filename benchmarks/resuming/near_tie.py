"""Whether two greedy texts of a real engine part where it could hardly choose between two tokens.

An engine that reads tokens as a prompt computes them in other sums than when it wrote them: in bfloat16 the
last digits differ, and two tokens that are nearly alike may change places. That is no slip at the seam.
"""

from __future__ import annotations

from phasewise.clients.http_client import HttpClient

from .asking import COMPLETIONS, ask

NEAR_TIE_NATS = 0.5
"""Tokens whose log probabilities differ by less than this may change places: in bfloat16 logits between 16
and 32 are multiples of 1/8, and each of two may be off by a step or two.

Set after a first look at the control of resume_exactness.py, which hands over the very tokens and parts at
gaps of up to 0.38. 0.25 was tried before, and called two of the control's own partings clear.
"""


async def gap_nats(client: HttpClient, model: str, prompt_ids: list[int]) -> float:
    """How much likelier the engine's first choice after these tokens is than its second."""
    body = {"model": model, "prompt": prompt_ids, "max_tokens": 1, "temperature": 0, "logprobs": 5}
    reply = await ask(client, COMPLETIONS, {**body, "return_tokens_as_token_ids": True})
    first, second, *_ = sorted(reply["choices"][0]["logprobs"]["top_logprobs"][0].values(), reverse=True)
    return float(first - second)


def parting(texts: list[str], got: str) -> int | None:
    """Which of an answer's tokens, given by their texts, is the first that `got` does not hold.

    None where it holds them all, as far as it goes.
    """
    written = ""
    for index, text in enumerate(texts):
        written += text
        if not got.startswith(written):
            return None if written.startswith(got) else index
    return None
