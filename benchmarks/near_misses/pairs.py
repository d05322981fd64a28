"""Pairs of questions with the truth about them: near misses of every kind, and paraphrases of every depth."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from .grammar import Kind, draw_question, near_miss
from .library import Library, first_wording, reworded

PARAPHRASE = "paraphrase"
PARAPHRASE_SHARE = 0.4
MOST_TRIES = 50


@dataclass(frozen=True)
class QuestionPair:
    """Two questions, what they differ in, and whether one answer is right for both."""

    kind: str
    duplicate: bool
    a: str
    b: str


def make_pairs(library: Library, seed: int, count: int) -> list[QuestionPair]:
    """Pairs, no two alike, all kinds of near miss equally often; but `turned`, which is not true for ever."""
    rng = Random(f"pairs {library.name} {seed}")
    kinds = [kind for kind in Kind if kind is not Kind.TURNED]
    frames = {kind: [frame for frame in library.frames if kind in frame.kinds()] for kind in kinds}
    found: dict[tuple[str, str], QuestionPair] = {}
    for _ in range(count * MOST_TRIES):
        if len(found) == count:
            break
        if rng.random() < PARAPHRASE_SHARE:
            pair = _paraphrase(library, rng)
        else:
            kind = kinds[len(found) % len(kinds)]
            question = draw_question(rng.choice(frames[kind]), rng)
            wording = first_wording(library, question.frame, rng)
            pair = QuestionPair(
                kind.value, False, wording.of(question), wording.of(near_miss(question, kind, rng))
            )
        if pair is not None:
            found[min(pair.a, pair.b), max(pair.a, pair.b)] = pair
    return list(found.values())


def _paraphrase(library: Library, rng: Random) -> QuestionPair | None:
    question = draw_question(rng.choice(library.frames), rng)
    wording = first_wording(library, question.frame, rng)
    other = reworded(library, question, wording, rng)
    if other is None:
        return None
    return QuestionPair(f"{PARAPHRASE}_{other[1]}", True, wording.of(question), other[0].of(question))
