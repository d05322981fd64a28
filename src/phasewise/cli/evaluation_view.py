"""What rules for matching did to pairs of questions, for people: a table of rules, bars for every kind."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from phasewise.bench.page.numbers import NONE, share
from phasewise.caching.evaluation import Evaluation, Guarding, KindCount

BAR_CELLS = 8
GUARDS_WORDS = {
    Guarding.NONE: "no guards",
    Guarding.BUT_CONTENT: "guards but content",
    Guarding.ALL: "all guards",
}
WHICH_GUARDS = {Guarding.NONE: "none", Guarding.BUT_CONTENT: "all but content", Guarding.ALL: "all"}
DRAWN_COSINE = 0.90
"""The threshold that is drawn by kind: the usual advice for sentence embeddings."""


def render(evaluations: Sequence[Evaluation], pairs: int, space: str) -> RenderableType:
    """The rules, then the kinds under the rules of one threshold, then what follows."""
    drawn = [it for it in evaluations if it.rule.min_similarity == DRAWN_COSINE]
    count = f"{pairs:,} pair{'s' if pairs != 1 else ''}"
    parts: list[RenderableType] = [Text(f"{count}, embedded by {space}"), _rules(evaluations)]
    kinds = drawn[0].kinds if drawn else ()
    if any(kind.others for kind in kinds):
        parts.append(_by_kind(f"False hits by kind, at cosine {DRAWN_COSINE:.2f}", drawn, False))
    if any(kind.duplicates for kind in kinds):
        parts.append(_by_kind(f"Hits by kind, at cosine {DRAWN_COSINE:.2f}", drawn, True))
    return Group(*parts, *(Text(line) for line in conclusion(drawn)))


def _rules(evaluations: Sequence[Evaluation]) -> Table:
    # Two short columns say what a rule is: its name in one would be broken on 80 columns.
    table = Table("cosine", title="Rules", title_justify="left")
    table.add_column("guards", no_wrap=True)
    for column in ("precision", "recall", "false hits"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("worst kind", overflow="fold")
    for it in evaluations:
        table.add_row(
            f"{it.rule.min_similarity:.2f}",
            WHICH_GUARDS[it.rule.guarding],
            share(it.total.precision),
            share(it.total.recall),
            f"{it.total.false_hits:,} of {it.total.others:,}",
            worst_words(it),
            end_section=it.rule.min_similarity == evaluations[-1].rule.min_similarity,
        )
    return table


def worst_words(evaluation: Evaluation) -> str:
    """The kind that a rule serves wrongly the most often."""
    worst = evaluation.worst_kind
    if worst is None or not worst.false_hits:
        return NONE
    return f"{worst.kind} {share(worst.false_hit_share)}"


def _by_kind(title: str, drawn: Sequence[Evaluation], duplicates: bool) -> Table:
    table = Table("kind", title=title, title_justify="left")
    table.columns[0].overflow = "fold"
    table.add_column("pairs", justify="right")
    for it in drawn:
        table.add_column(GUARDS_WORDS[it.rule.guarding], no_wrap=True)
    for rows in zip(*(it.kinds for it in drawn), strict=True):
        count = rows[0].duplicates if duplicates else rows[0].others
        if count:
            table.add_row(rows[0].kind, f"{count:,}", *(_bar(kind, duplicates) for kind in rows))
    return table


def _bar(kind: KindCount, duplicates: bool) -> Text:
    value = (kind.recall if duplicates else kind.false_hit_share) or 0.0
    cells = round(value * BAR_CELLS)
    colour = "green" if duplicates else "red"
    return Text(f"{share(value):>5} ").append("█" * cells, colour)


def conclusion(drawn: Sequence[Evaluation]) -> list[str]:
    """What follows for whoever would serve by such a rule."""
    plain, guarded = (
        next((it for it in drawn if it.rule.guarding is wanted), None)
        for wanted in (Guarding.NONE, Guarding.ALL)
    )
    if plain is None or guarded is None or not plain.total.others:
        return []
    lines = []
    if plain.total.false_hits:
        lines.append(
            f"Cosine {DRAWN_COSINE:.2f} alone would serve {share(plain.total.false_hit_share)} of the pairs "
            f"that mean something else (worst kind: {worst_words(plain)})."
        )
    through = f"{guarded.total.false_hits:,}" if guarded.total.false_hits else "none"
    worst = f" (worst kind: {worst_words(guarded)})" if guarded.total.false_hits else ""
    left = f"let {through} of {guarded.total.others:,} through{worst}"
    kept = f" and keep {share(guarded.total.recall)} of the true ones" if plain.total.duplicates else ""
    lines.append(
        f"All guards together {left}{kept}. What a gateway serves by meaning is bounded by what it verifies "
        "besides: see docs/reference/cache.md."
    )
    return lines
