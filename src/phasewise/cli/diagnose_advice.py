"""What to do about a verdict, on the screen: fixes with their predicted effects, and what would not help."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from phasewise.cli.diagnose_text import at_most, beside, paragraph, title
from phasewise.diagnosis.fix import Fix
from phasewise.diagnosis.verdict import Verdict
from phasewise.observe.page import words
from phasewise.observe.page.fix_words import how_in_words, prediction_in_words

FIXES = 4
USELESS = 3
"""So many fixes, and levers that would not help, are named; the page names all."""


def advice_lines(verdict: Verdict, width: int) -> Iterator[Text]:
    """The next step: the first fix in full, the others in short."""
    next_step = words.what_next(verdict)
    if next_step:
        yield Text()
        yield from title("Next", next_step, width)
    advice = verdict.advice
    if advice is None:
        return
    if advice.fixes:
        yield Text()
        yield from title("What to do", "", width)
        for place, fix in enumerate(advice.fixes[:FIXES], start=1):
            yield from _in_full(place, fix, width) if place == 1 else _in_short(place, fix, width)
    if advice.would_not_help:
        yield Text()
        yield from beside("Would not help", at_most(advice.would_not_help, USELESS), width)


def _in_full(place: int, fix: Fix, width: int) -> Iterator[Text]:
    yield from paragraph(fix.what, width, first=f"  {place}. ", rest="     ", style="bold")
    for how in how_in_words(fix):
        yield from _detail(how, width)
    if fix.effect is not None or fix.unpredictable:
        yield from _detail(prediction_in_words(fix), width)
    yield from _detail(f"price: {fix.price}", width)
    if fix.verify:
        yield from _detail(f"verify: {fix.verify}", width)


def _detail(told: str, width: int) -> Iterator[Text]:
    return paragraph(told, width, first="     ", rest="       ")


def _in_short(place: int, fix: Fix, width: int) -> Iterator[Text]:
    """A fix in a line: its price is told where there is room for it, and in any case by --report."""
    first = f"  {place}. "
    flag = f" [{fix.engine_flag}]" if fix.engine_flag else ""
    effect = f"; {prediction_in_words(fix)}" if fix.effect is not None else ""
    told = f"{fix.what}{flag}{effect}"
    priced = f"{told}; price: {fix.price}"
    fits = len(first) + len(priced) <= width
    yield from paragraph(priced if fits else told, width, first=first, rest="     ")
