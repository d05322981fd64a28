"""Greedy texts whose KV was handed over, held against those of a single engine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from random import Random
from typing import Any

from resuming.asking import CHAT, PATIENT
from resuming.near_tie import NEAR_TIE_NATS
from resuming.reading import WHOLE, read_stream
from resuming.undisturbed import undisturbed

from phasewise.benchmark.workload.prompts import write_text
from phasewise.clients.http_client import HttpClient

ANSWER_TOKENS = 48
READ_TOKENS = (0, 100, 250, 600, 1_500)
"""How long the text is that a question stands after; blocks of KV hold 128 tokens."""
QUESTIONS = (
    "Tell me a story about a lighthouse.",
    "List ten animals with a short note on each.",
    "Write a Python function that merges two sorted lists.",
    "Explain how a bicycle stays upright.",
)
UNEXPLAINED_NATS = 99.0
TEXTS = len(READ_TOKENS) * len(QUESTIONS)


def bodies(model: str, seed: int = 7) -> Iterator[dict[str, Any]]:
    """Chats of several lengths."""
    rng = Random(seed)
    for tokens in READ_TOKENS:
        for question in QUESTIONS:
            read = f"{write_text(tokens, rng)}\n\n" if tokens else ""
            messages = [{"role": "user", "content": f"{read}{question}"}]
            yield {"model": model, "messages": messages, "temperature": 0, "max_tokens": ANSWER_TOKENS}


async def compared(gateway_url: str, engine_url: str, model: str, count: int) -> dict[str, Any]:
    """So many texts through the gateway, each against that of the engine when it is asked alone.

    A text is equal where it is the same, or parts where the engine could hardly choose between two tokens.
    """
    gateway, engine = HttpClient(gateway_url, PATIENT), HttpClient(engine_url, PATIENT)
    gaps_nats: list[float] = []
    try:
        asked = list(bodies(model))[:: max(TEXTS // count, 1)][:count]
        for body in asked:
            gap = await parting_gap(gateway, engine, body)
            if gap is not None:
                gaps_nats.append(round(gap, 3))
    finally:
        gateway.close()
        engine.close()
    near_ties = sum(gap < NEAR_TIE_NATS for gap in gaps_nats)
    equal = len(asked) - len(gaps_nats) + near_ties
    print(f"texts: {equal} of {len(asked)} equal, {near_ties} near-ties", file=sys.stderr, flush=True)
    return {"texts": len(asked), "equal_texts": equal, "near_ties": near_ties, "parting_gaps_nats": gaps_nats}


async def parting_gap(gateway: HttpClient, engine: HttpClient, body: dict[str, Any]) -> float | None:
    """How close the engine's choice was where the two texts part; None where they are the same."""
    transferred = await read_stream(gateway, CHAT, {**body, "stream": True})
    if transferred.ended != WHOLE:
        raise SystemExit(f"a text did not come to its end ({transferred.ended})")
    alone = await read_stream(engine, CHAT, {**body, "stream": True})
    if alone.text == transferred.text:
        return None
    expected = await undisturbed(engine, CHAT, body)
    if "".join(expected.texts) == transferred.text:
        # Asked once more, the engine agrees: it was the engine alone that chose differently.
        return 0.0
    gap = await expected.gap_where_it_parts(engine, transferred.text)
    # The same as far as it goes, but longer or shorter: nothing that two close tokens explain.
    return UNEXPLAINED_NATS if gap is None else gap
