"""Prompts that mean something, for levers whose effect depends on what is written back.

Words drawn at random show what a length costs, but nobody can guess how an answer to them goes on, so
speculation shows nothing there. Which prompt comes when is left to drafts.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from phasewise.errors import ConfigError
from phasewise.workload.lengths import Lengths
from phasewise.workload.passages import PASSAGES


@dataclass(frozen=True, slots=True)
class Written:
    """Prompts to be sent as they are, however long that is, and how much is to be answered.

    `about` says in a few words what is asked. Only outputs have a length that can be chosen.
    """

    about: str
    prompts: tuple[str, ...] = field(repr=False)
    output_tokens: int | Lengths

    def __post_init__(self) -> None:
        if not self.prompts or not all(self.prompts):
            raise ConfigError("a workload without prompts", hint="write at least one, and none that is empty")

    @property
    def output(self) -> Lengths:
        """How long outputs are, whichever way it was said."""
        tokens = self.output_tokens
        return tokens if isinstance(tokens, Lengths) else Lengths.fixed(tokens)


COPYING = Written(
    "a passage to be repeated word for word",
    tuple(
        f"Repeat this text exactly, word for word, and write nothing else:\n\n{passage}"
        for passage in PASSAGES
    ),
    output_tokens=80,
)
"""The answer stands in the prompt: the best case for guessing tokens from it.

The demo model, greedily, writes the first 80 tokens of every passage back as they are.
"""

FREE_TEXT = Written(
    "a story, a letter or an explanation to be written",
    (
        "Write a short story about a clockmaker who finds a door behind a shelf.",
        "Explain to a child why the sea is salty.",
        "Write a letter to a friend who has moved to another country.",
        "Describe a walk through a market early in the morning.",
        "Explain how a bicycle stays upright.",
        "Write a story in which a fox and a heron share a river.",
        "Give advice to somebody who starts a new job on Monday.",
        "Describe the house of an old sea captain.",
        "Explain why leaves change their colour in autumn.",
        "Write a letter of complaint about a train that was four hours late.",
        "Tell how a village prepared for the longest winter it had known.",
        "Explain what a library does for a small town.",
        "Write a speech for the opening of a new bridge.",
        "Describe a storm as it is seen from a mountain hut.",
        "Explain how bread rises, to somebody who has never baked.",
        "Write a story about a letter that arrives forty years late.",
    ),
    output_tokens=48,
)
"""The answer stands nowhere: what can be guessed is what the answer itself repeats.

Small models that are made to go on begin to repeat themselves. Of the demo model's first 48 tokens, seven in
a hundred could be skipped by guesses from four-token matches; of 80 it is eleven.
"""

SHORT_ANSWERS = Written(
    "a question with an answer of a few words",
    (
        "What is the capital of France? Answer in one word.",
        "How many days has a week? Answer with a number.",
        "Which colour do you get from blue and yellow? Answer in one word.",
        "What is seven times eight? Answer with a number.",
        "Which planet is closest to the sun? Answer in one word.",
        "What is the opposite of cold? Answer in one word.",
        "Which animal gives us wool? Answer in one word.",
        "In which month is Christmas? Answer in one word.",
        "What do bees make? Answer in one word.",
        "How many legs has a spider? Answer with a number.",
        "Which metal is liquid at room temperature? Answer in one word.",
        "What is the plural of mouse? Answer in one word.",
        "Is the sun a star? Answer yes or no.",
        "Which ocean lies between Europe and America? Answer in one word.",
        "What is frozen water called? Answer in one word.",
        "How many minutes has an hour? Answer with a number.",
    ),
    output_tokens=8,
)
"""Over before speculation could save a step worth speaking of."""
