"""The inputs for comparing engines' answers: passages to predict and prompts to answer.

All of it was written for this purpose, so that no model has memorized it. Changing a word makes new readings
incomparable with old ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from phasewise.loadgen.workload.texts import COPYING


def _unfolded(text: str) -> str:
    """A text with one line per paragraph, as users send it."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.strip().split("\n\n"))


_TIDE_TABLES = """
The ferry to Harrow Point leaves at ten past six, and on most mornings Ines Calloway is the only
passenger who stays on deck. She keeps the tide tables for the harbour office, which means that three
days a week she rows out to the marker post, reads the brass scale below the lamp, and writes the figure
down in pencil because ink runs. Her grandfather did the same with a knotted rope. He used to say that
the sea was punctual but never polite.

Last October the post leaned over after a storm, and for a fortnight every reading came out four
centimetres too high. Nobody noticed until a barge scraped its keel on a bank that should have been
safely covered. The inspector blamed the pilot, the pilot blamed the chart, and the chart, when they
unrolled it on the kitchen table, turned out to be perfectly right. Ines found the fault with a plumb
line and a bucket of water. She wrote a short letter to the office, enclosed a drawing, and asked for a
new post made of oak instead of pine. They sent her a thank-you card and a second pencil.
"""

_OVEN = """
To set the oven's clock after a power cut, hold the left button for three seconds until the minutes
blink. Turn the dial to the right to go forward and to the left to go back; each click is one minute.
Press the left button again to move on to the hours. If you do nothing for half a minute, the oven keeps
what it shows and the light goes out. The timer works while the oven is cold, too, so you can use it for
eggs or for a nap.

Before you clean the glass, let the door cool down. Lift the two small levers at the hinges, close the
door half-way, and pull it towards you with both hands: it weighs about seven kilograms. Lay it on a
towel. Never use a steel sponge, because scratches weaken the glass and it may crack months later. When
you put the door back, fold both levers down before you open it fully; if one of them is still up, the
hinge snaps shut and can hurt your fingers. A squeaking hinge needs one drop of heat-proof grease, not
cooking oil, which turns sticky and smells.
"""

_GREENHOUSE = """\
def refill_plan(tanks, pump_litres_per_minute, target_share=0.9):
    \"\"\"Return (name, minutes) for every tank that is below its target, the longest first.\"\"\"
    plan = []
    for tank in tanks:
        missing = tank["capacity"] * target_share - tank["level"]
        if missing <= 0:
            continue
        plan.append((tank["name"], round(missing / pump_litres_per_minute, 1)))
    return sorted(plan, key=lambda entry: entry[1], reverse=True)

The function is called every evening with the readings of the greenhouse, for example these:

{"site": "north slope", "read_at": "19:40", "tanks": [
  {"name": "fern", "capacity": 800, "level": 655},
  {"name": "tomato", "capacity": 1200, "level": 310},
  {"name": "nursery", "capacity": 400, "level": 392}
]}

With a pump that moves 25 litres per minute the answer is [("tomato", 30.8), ("fern", 2.6)]. The nursery
is left out, because 392 litres are more than nine tenths of 400. If the pump is replaced by one that
moves 40 litres per minute, the tomato tank is done in 19.2 minutes and the fern tank in 1.6.
"""

_MINUTES = """
Minutes of the allotment society, spring meeting. Fourteen members came, two sent apologies, and one dog
was asked to wait outside. The treasurer reported an income of 1,846 pounds, of which 1,210 came from
rents and 636 from the plant sale; the costs were 1,502 pounds, so that 344 pounds remain. The largest
bill was for the water pipe along the eastern fence, which had burst in February for the third winter in
a row. It was agreed to bury the new pipe sixty centimetres deep rather than thirty.

Plot 9 has been empty since August. Three families are on the list, and the first of them asked whether
bees are allowed. After a long discussion the meeting decided that one hive may be kept on trial,
provided that it stands at least ten metres from the path and faces the hedge. Mr Oduya offered to
explain bees to anyone who is afraid of them. Mrs Lind offered to explain to Mr Oduya why people are
afraid. The question of the compost heap, which has been put off twice, was put off again. The next
meeting is on the second Thursday in June, at half past seven.
"""

PASSAGES: tuple[str, ...] = (_unfolded(_TIDE_TABLES), _unfolded(_OVEN), _GREENHOUSE, _unfolded(_MINUTES))
"""A story, an instruction, code with its data, and minutes full of numbers: about 700 words."""

OPENING = "\n\n".join((*PASSAGES, ""))
"""A prefix that prompts may share: longer than a chunk of 512 tokens, and several blocks of 128."""

PROMPTS: tuple[str, ...] = (
    "What is the capital of France?",
    "Name three things you need to bake bread.",
    "Write a short letter to a neighbour whose cat sleeps in your greenhouse.",
    "Explain to a child why the moon changes its shape.",
    "What is 17 plus 26? Show how you work it out.",
    "Give two reasons for and two against working at night.",
    "Write a Python function that counts the vowels in a word.",
    "Turn this into a polite request: close the window, it is cold.",
    "List the months that have thirty days.",
    "Tell the beginning of a story about a lighthouse keeper who is afraid of the dark.",
    "What should I check before I buy a used bicycle?",
    "Answer in JSON with the keys city and country: where is the river Thames widest?",
)
"""Short questions of different kinds: facts, lists, letters, sums, code and stories."""


# --- What an engine is asked when its answers are compared, so that the lever in question has an effect.
#
# Short questions, one at a time, find nothing in a prefix cache, share no step, are never split into chunks
# and give nothing to copy: equal answers to them would show nothing.

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Probe:
    """Prompts, each after the same `opening`; `at_once` are sent concurrently."""

    prompts: tuple[str, ...]
    opening: str = ""
    at_once: int = 1

    async def ask(self, answer: Callable[[str], Awaitable[_T]]) -> tuple[_T, ...]:
        """Every prompt's answer, in order; the first failure ends all."""
        places = asyncio.Semaphore(self.at_once)

        async def asked(prompt: str) -> _T:
            async with places:
                return await answer(f"{self.opening}{prompt}")

        tasks = [asyncio.create_task(asked(prompt)) for prompt in self.prompts]
        try:
            return tuple(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def probe_of(lever: str, prompts: int) -> Probe:
    """This many prompts that the lever acts on."""
    asked = PROMPTS[:prompts]
    match lever:
        case "speculation":
            return Probe(COPYING.prompts[:prompts])
        case "prefix_cache" | "max_num_batched_tokens":
            return Probe(asked, opening=OPENING)
        case "continuous_batching" | "max_num_seqs":
            return Probe(asked, at_once=len(asked))
        case _:
            return Probe(asked)
