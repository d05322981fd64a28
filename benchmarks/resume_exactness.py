"""How exactly does a real engine go on with an answer that broke off, by each way of telling it the past?

    python benchmarks/resume_exactness.py [--prompts 12] [--cuts 4] [--quick] [--json] [--url URL]

Greedy answers of the real engine are cut after some of their tokens and continued on the same engine, in
these ways:
  text                    as the gateway does it: the prompt's tokens and those of the text so far
  continue_final_message  the text so far as an open message of the assistant
  true_ids                the very tokens that were written. The control: where this parts from the answer,
                          the engine's own arithmetic does
  held_back               as the gateway does it where a stop string made the engine keep back three
                          characters, so that the text so far ends anywhere within a word
  within_a_word           the same, if one simply went on from there
Where a continuation parts from the answer, the engine is asked how close its two best choices were there.
`penalised` are answers under a frequency penalty, continued with the past made up for as the gateway does it,
and with the past forgotten. What the gateway would refuse to go on with counts as neither exact nor parted,
but as rejected. `same_ids` is the share of breaks at which the text's tokens were the very ones
that had been written. Last, what `return_token_ids` would add to a chunk, in bytes and in the time to take it
out again.
"""

from __future__ import annotations

import asyncio
import json
import re
import timeit
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

from resuming.asking import CHAT, COMPLETIONS, PATIENT, ask, stream
from resuming.near_tie import NEAR_TIE_NATS
from resuming.undisturbed import Undisturbed, undisturbed
from script import command_line, print_record, say, use_home
from stress.processes import real_engine

from phasewise.clients.http_client import HttpClient
from phasewise.core.errors import FailureKind, UpstreamError
from phasewise.core.request import Endpoint
from phasewise.gateway.upstream.continuation import tokens_so_far
from phasewise.gateway.upstream.response import Answer
from phasewise.gateway.upstream.resumption import Obstacle, Resumption, TokensSoFar, resumption

MODEL = "smollm2-135m"
FLEET = "resume-exactness"
GREEDY = {"model": MODEL, "temperature": 0}
ANSWER_TOKENS = 64
GO_ON_TOKENS = 24
STOP = "@@@@"
"""Never written; makes the engine keep back as many characters as it has, but one."""
BY_TEXT, BY_MESSAGE, BY_IDS = "text", "continue_final_message", "true_ids"
HELD_BACK, WITHIN_A_WORD = "held_back", "within_a_word"
WAYS = (BY_TEXT, BY_MESSAGE, BY_IDS, HELD_BACK, WITHIN_A_WORD)

PROMPTS = (
    "Tell me a story about a lighthouse.",
    "List ten animals with a short note on each.",
    "Write a Python function that merges two sorted lists.",
    "Explain how a bicycle stays upright.",
    "Schreibe ein kurzes Gedicht über den Herbst.",
    "Write three sentences full of emoji about the sea.",
    "Give me a JSON object that describes a house.",
    "What is 17 times 23? Show every step.",
    "Écris une lettre à un ami pour l'inviter.",
    "Write a dialogue between two captains.",
    "Make a table in Markdown of five planets and their sizes.",
    "Explain the difference between a virus and a bacterium.",
)


@dataclass
class Tally:
    """How continuations of one way came out."""

    exact: int = 0
    rejected: int = 0
    gaps: list[float] = field(default_factory=list)

    def add(self, gap: float | Obstacle | None) -> None:
        """Count one: `gap` is None where it was exact."""
        if gap is None:
            self.exact += 1
        elif isinstance(gap, Obstacle):
            self.rejected += 1
        else:
            self.gaps.append(round(gap, 2))

    @property
    def parted(self) -> int:
        """How many parted where the engine's choice was clear."""
        return sum(gap >= NEAR_TIE_NATS for gap in self.gaps)


def main() -> None:
    """Cut, continue, compare, print the record."""
    parser = command_line(__doc__, quick="two answers, two cuts")
    parser.add_argument("--prompts", type=int, default=len(PROMPTS), help="how many answers are cut")
    parser.add_argument("--cuts", type=int, default=4, help="how often each is cut")
    parser.add_argument("--url", help="an engine that runs already")
    parser.add_home()
    options = parser.parse_args()
    use_home(options.home)
    prompts, cuts = (2, 2) if options.quick else (options.prompts, options.cuts)
    with engine(options.url) as url:
        record = asyncio.run(measured(url, PROMPTS[:prompts], cuts))
    print_record(record, options)


async def measured(url: str, prompts: tuple[str, ...], cuts: int) -> dict[str, Any]:
    """The whole measurement on one engine."""
    client = HttpClient(url, PATIENT)
    tallies = {way: Tally() for way in WAYS}
    same_ids = broken = 0
    try:
        for number, prompt in enumerate(prompts):
            body = {**GREEDY, "messages": [{"role": "user", "content": prompt}], "max_tokens": ANSWER_TOKENS}
            answer = await undisturbed(client, CHAT, body)
            for cut in cut_points(len(answer.texts), cuts):
                broken += 1
                same_ids += await reads_the_same(client, body, answer, cut)
                gaps = await asyncio.gather(*(continued(client, body, answer, cut, way) for way in WAYS))
                for tally, gap in zip(tallies.values(), gaps, strict=True):
                    tally.add(gap)
            say(f"{number + 1} of {len(prompts)}: {tallies[BY_TEXT]}")
        penalty = penalised_shares([await penalised_pair(client, prompt) for prompt in prompts])
        price = await price_of_ids(client)
    finally:
        client.close()
    shares = {f"exact_{way}": round(it.exact / (broken - it.rejected), 3) for way, it in tallies.items()}
    parted = {f"parted_{way}": tally.parted for way, tally in tallies.items()}
    gaps_nats = {way: sorted(tally.gaps) for way, tally in tallies.items()}
    rejected = {f"refused_{way}": tally.rejected for way, tally in tallies.items()}
    same = round(same_ids / broken, 3)
    facts = {"breaks": broken, "same_ids": same, **shares, **rejected, **parted, **penalty}
    return {**facts, "gaps_nats": gaps_nats, **price}


def cut_points(tokens: int, cuts: int) -> list[int]:
    """After how many tokens an answer is cut: spread evenly, none at its very ends."""
    return sorted({max(4, (number + 1) * tokens // (cuts + 1)) for number in range(cuts)})


async def reads_the_same(client: HttpClient, body: dict[str, Any], answer: Undisturbed, cut: int) -> bool:
    """Whether the text's tokens are the very ones that were written."""
    plan = plan_for(body, "".join(answer.texts[:cut]))
    if isinstance(plan, Obstacle):
        return False
    so_far = await tokens_told(client, plan)
    if isinstance(so_far, Obstacle):
        return False
    return so_far.prompt_ids + so_far.answer_ids == answer.prompt_ids + answer.ids[:cut]


async def continued(
    client: HttpClient, body: dict[str, Any], answer: Undisturbed, cut: int, way: str
) -> float | Obstacle | None:
    """How close the choice was at which the continuation parted from the answer; None if it did not."""
    text = "".join(answer.texts[:cut])
    if way == BY_MESSAGE:
        messages = [*body["messages"], {"role": "assistant", "content": text}]
        asked = {**GREEDY, "messages": messages, "max_tokens": GO_ON_TOKENS}
        asked |= {"add_generation_prompt": False, "continue_final_message": True}
        reply = await ask(client, CHAT, asked)
        return await answer.gap_where_it_parts(client, text + reply["choices"][0]["message"]["content"])
    if way in {HELD_BACK, WITHIN_A_WORD}:
        text = text[: 1 - len(STOP)]
    plan = plan_for(body | {"stop": [STOP]} if way == HELD_BACK else body, text)
    if isinstance(plan, Obstacle):
        return plan
    so_far = await tokens_told(client, plan)
    if isinstance(so_far, Obstacle):
        return so_far
    ids = answer.ids[:cut] if way == BY_IDS else so_far.answer_ids
    asked = {**GREEDY, "prompt": so_far.prompt_ids + ids, "max_tokens": GO_ON_TOKENS}
    reply = await ask(client, COMPLETIONS, asked)
    return await answer.gap_where_it_parts(client, plan.text + reply["choices"][0]["text"])


def plan_for(body: dict[str, Any], text: str) -> Resumption | Obstacle:
    """What the gateway would do if the stream broke after this text."""
    notes = Answer()
    notes.text_escaped.extend(json.dumps(text)[1:-1].encode())
    notes.engine_request_id = "chatcmpl-cut"
    return resumption(Endpoint.CHAT, json.dumps(body).encode(), notes, None)


async def tokens_told(client: HttpClient, plan: Resumption) -> TokensSoFar | Obstacle:
    """The tokens so far, if they spell the text."""
    try:
        return await tokens_so_far(client, plan)
    except UpstreamError as error:
        if error.kind is FailureKind.NOT_CONTINUED:
            return Obstacle(error.message)
        raise


async def penalised_pair(client: HttpClient, prompt: str) -> tuple[bool, bool] | None:
    """Whether a penalised answer goes on exactly: with its past made up for, and with its past forgotten.

    None where it does not go on at all.
    """
    body = {**GREEDY, "messages": [{"role": "user", "content": prompt}], "max_tokens": ANSWER_TOKENS}
    body["frequency_penalty"] = 1.2
    answer = await undisturbed(client, CHAT, body)
    half = len(answer.texts) // 2
    plan = plan_for(body, "".join(answer.texts[:half]))
    if isinstance(plan, Obstacle):
        return None
    so_far = await tokens_told(client, plan)
    if isinstance(so_far, Obstacle):
        return None
    asked = json.loads(plan.continuation(so_far) or b"{}")
    asked["max_tokens"] = GO_ON_TOKENS
    forgotten = {name: value for name, value in asked.items() if name != "logit_bias"}
    replies = await asyncio.gather(*(ask(client, COMPLETIONS, it) for it in (asked, forgotten)))
    rest = "".join(answer.texts[half : half + GO_ON_TOKENS])
    made_up, without = (reply["choices"][0]["text"] == rest for reply in replies)
    return made_up, without


def penalised_shares(pairs: Sequence[tuple[bool, bool] | None]) -> dict[str, float]:
    """How many of the penalised answers that went on did so exactly, and how many did not go on."""
    went_on = [pair for pair in pairs if pair is not None]
    shares: dict[str, float] = {"penalised_rejected": len(pairs) - len(went_on)}
    if went_on:
        shares["penalised_exact"] = round(mean(made_up for made_up, _ in went_on), 3)
        shares["penalised_exact_if_forgotten"] = round(mean(forgotten for _, forgotten in went_on), 3)
    return shares


async def price_of_ids(client: HttpClient) -> dict[str, float]:
    """What return_token_ids adds to a chunk, and what it costs to take it out again."""
    messages = [{"role": "user", "content": "Count. " * 400}]
    body = {**GREEDY, "messages": messages, "max_tokens": 8, "ignore_eos": True, "stream": True}
    plain = [event async for event in stream(client, CHAT, body)]
    with_ids = [event async for event in stream(client, CHAT, {**body, "return_token_ids": True})]
    ids = re.compile(rb',"token_ids":\[[0-9,]*\]')
    runs = 20_000
    stripping_s = timeit.timeit(lambda: ids.sub(b"", with_ids[2]), number=runs) / runs
    return {
        "chunk_bytes": len(plain[2]),
        "chunk_bytes_with_ids": len(with_ids[2]),
        "first_chunk_bytes": len(plain[0]),
        "first_chunk_bytes_with_ids": len(with_ids[0]),
        "stripping_us_per_chunk": round(stripping_s * 1e6, 2),
    }


@contextmanager
def engine(url: str | None) -> Iterator[str]:
    """The engine at that address, or one of our own until the block is left."""
    if url is not None:
        yield url
        return
    with real_engine(FLEET) as fleet:
        yield fleet["engines"][0]["url"]


if __name__ == "__main__":
    main()
