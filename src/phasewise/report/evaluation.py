"""The evaluation of matching rules on question pairs, as text."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from phasewise.core.units import NONE, counted, share
from phasewise.semantic_match.evaluation import Evaluation, Guarding, KindCount

BAR_CELLS = 8
GUARDS_WORDS = {
    Guarding.NONE: "no guards",
    Guarding.BUT_CONTENT: "guards but content",
    Guarding.ALL: "all guards",
}
WHICH_GUARDS = {Guarding.NONE: "none", Guarding.BUT_CONTENT: "all but content", Guarding.ALL: "all"}
DRAWN_COSINE = 0.90
"""The threshold shown by kind: the common advice for sentence embeddings."""


def render(evaluations: Sequence[Evaluation], pairs: int, space: str) -> RenderableType:
    """The rules, then the kinds at one threshold, then the conclusion."""
    drawn = [evaluation for evaluation in evaluations if evaluation.rule.min_similarity == DRAWN_COSINE]
    count = counted(pairs, "pair")
    parts: list[RenderableType] = [Text(f"{count}, embedded by {space}"), _rules(evaluations)]
    kinds = drawn[0].kinds if drawn else ()
    if any(kind.others for kind in kinds):
        parts.append(_by_kind(f"False hits by kind, at cosine {DRAWN_COSINE:.2f}", drawn, False))
    if any(kind.duplicates for kind in kinds):
        parts.append(_by_kind(f"Hits by kind, at cosine {DRAWN_COSINE:.2f}", drawn, True))
    return Group(*parts, *(Text(line) for line in conclusion(drawn)))


def _rules(evaluations: Sequence[Evaluation]) -> Table:
    # A rule takes two short columns, because its name in one would wrap at 80 columns.
    table = Table("cosine", title="Rules", title_justify="left")
    table.add_column("guards", no_wrap=True)
    for column in ("precision", "recall", "false hits"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("worst kind", overflow="fold")
    for evaluation in evaluations:
        table.add_row(
            f"{evaluation.rule.min_similarity:.2f}",
            WHICH_GUARDS[evaluation.rule.guarding],
            share(evaluation.total.precision),
            share(evaluation.total.recall),
            f"{evaluation.total.false_hits:,} of {evaluation.total.others:,}",
            worst_words(evaluation),
            end_section=evaluation.rule.min_similarity == evaluations[-1].rule.min_similarity,
        )
    return table


def worst_words(evaluation: Evaluation) -> str:
    """The kind with the most false hits under a rule."""
    worst = evaluation.worst_kind
    if worst is None or not worst.false_hits:
        return NONE
    return f"{worst.kind} {share(worst.false_hit_share)}"


def _by_kind(title: str, drawn: Sequence[Evaluation], duplicates: bool) -> Table:
    table = Table("kind", title=title, title_justify="left")
    table.columns[0].overflow = "fold"
    table.add_column("pairs", justify="right")
    for evaluation in drawn:
        table.add_column(GUARDS_WORDS[evaluation.rule.guarding], no_wrap=True)
    for rows in zip(*(evaluation.kinds for evaluation in drawn), strict=True):
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
    plain, guarded = (
        next((evaluation for evaluation in drawn if evaluation.rule.guarding is wanted), None)
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
        f"All guards together {left}{kept}. What a gateway serves semantically is also bounded by what "
        "it verifies: `phasewise cache stats` shows that."
    )
    return lines
