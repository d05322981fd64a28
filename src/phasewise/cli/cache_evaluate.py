"""`phasewise cache evaluate`: applies the matching rules to pairs of questions, offline."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from phasewise.cli.options import AsJson, print_json
from phasewise.core.errors import ConfigError, EmbedderUnreachable, UsageError
from phasewise.core.ports import Embedder
from phasewise.core.value import value
from phasewise.fleet.config import HttpEmbedderConfig, OnnxEmbedderConfig, phasewise_home
from phasewise.gateway.answer_cache.build import build_embedder
from phasewise.report.console import live_line, out
from phasewise.report.evaluation import render
from phasewise.semantic_match.evaluation import Evaluation, KindCount, ScoredPair
from phasewise.semantic_match.evaluation import evaluate as evaluate_pairs
from phasewise.semantic_match.guards import veto

COLUMNS = ("kind", "duplicate", "a", "b")
_DUPLICATE = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


@value
class QuestionPair:
    """Two questions, the kind of difference between them, and whether one answer fits both."""

    kind: str
    duplicate: bool
    a: str
    b: str


def read_pairs(path: Path) -> list[QuestionPair]:
    """All pairs of a file; other columns are ignored. Errors have the row number, never the text."""
    try:
        # Not splitlines(): it also splits at characters that a question may contain.
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror})", hint="check the path") from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is not text in UTF-8 (byte {error.start})",
            hint="save it as UTF-8 with tab-separated columns",
        ) from error
    names, *rows = ([cell.strip() for cell in line.split("\t")] for line in lines)
    if missing := [column for column in COLUMNS if column not in names]:
        raise ConfigError(
            f"{path}: the header has no column {', '.join(missing)}",
            hint=f"the first line has to be {', '.join(COLUMNS)}, separated by tabs",
        )
    pairs = []
    for number, cells in enumerate(rows, start=2):
        if not any(cells):
            continue
        found = dict(zip(names, cells, strict=False))
        if lacking := [column for column in COLUMNS if not found.get(column)]:
            raise ConfigError(
                f"{path}, line {number}: {lacking[0]} is empty",
                hint="columns are separated by tabs: add a value or delete this row; a question has no tab",
            )
        duplicate = _DUPLICATE.get(found["duplicate"].lower())
        if duplicate is None:
            raise ConfigError(
                f"{path}, line {number}: duplicate is neither 0 nor 1",
                hint="1 where one answer fits both questions, else 0",
            )
        pairs.append(QuestionPair(found["kind"], duplicate, found["a"], found["b"]))
    if not pairs:
        raise ConfigError(f"{path} holds no pairs", hint="write one pair per line below the header")
    return pairs


def evaluate(
    pairs: Annotated[
        Path,
        typer.Argument(
            metavar="PAIRS.TSV",
            help="Tab-separated file of question pairs with the columns kind, duplicate, a and b; "
            "duplicate is 1 where one answer fits both questions, else 0.",
        ),
    ],
    model: Annotated[
        str, typer.Option(help="An embedding model on this machine: a known name or a folder.")
    ] = "minilm-l6",
    embedder_url: Annotated[
        str | None,
        typer.Option(help="A server with OpenAI's /v1/embeddings instead; its address without /v1."),
    ] = None,
    embedder_model: Annotated[str | None, typer.Option(help="The embedding model on that server.")] = None,
    embedder_key_file: Annotated[Path | None, typer.Option(help="File with that server's API key.")] = None,
    as_json: AsJson = False,
) -> None:
    """Count the right and wrong matches of plain cosine and of the guards, by kind of pair.

    Needs no gateway. The bound that a gateway learns from traffic is not included.
    """
    questions = read_pairs(pairs)
    embedder = build_embedder(
        _embedder_config(model, embedder_url, embedder_model, embedder_key_file),
        phasewise_home(os.environ),
    )
    evaluations = evaluate_pairs(asyncio.run(_judge(questions, embedder)))
    if as_json:
        text = {"pairs": len(questions), "embedder": embedder.space, "rules": [*map(_facts, evaluations)]}
        print_json(text)
    else:
        out.print(render(evaluations, len(questions), embedder.space))


def _embedder_config(
    model: str, url: str | None, model_there: str | None, key_file: Path | None
) -> OnnxEmbedderConfig | HttpEmbedderConfig:
    if url is None and model_there is None and key_file is None:
        return OnnxEmbedderConfig(model=model)
    if url is None or model_there is None:
        raise UsageError(
            "--embedder-url and --embedder-model are only valid together",
            hint="such as --embedder-url http://127.0.0.1:8000 --embedder-model bge-small",
        )
    return HttpEmbedderConfig(
        kind="http", url=url, model=model_there, api_key_file=str(key_file) if key_file else None
    )


async def _judge(questions: Sequence[QuestionPair], embedder: Embedder) -> list[ScoredPair]:
    judged: list[ScoredPair] = []
    try:
        await embedder.start()
        async with live_line("pairs", lambda: f"{len(judged):,} of {len(questions):,}", sys.stderr):
            for question in questions:
                one, other = [
                    np.frombuffer(await embedder.embed(text), "<f4") for text in (question.a, question.b)
                ]
                objection = veto(question.a, question.b)
                guard = None if objection is None else objection.guard
                judged.append(ScoredPair(question.kind, question.duplicate, float(np.dot(one, other)), guard))
    except EmbedderUnreachable as error:
        raise EmbedderUnreachable(error.message, hint="check the options of the embedder") from error
    finally:
        await embedder.close()
    return judged


def _facts(evaluation: Evaluation) -> dict[str, Any]:
    return {
        "rule": evaluation.rule.name,
        "min_similarity": evaluation.rule.min_similarity,
        "guards": evaluation.rule.guarding,
        **_counts(evaluation.total),
        "kinds": [{"kind": kind.kind, **_counts(kind)} for kind in evaluation.kinds],
    }


def _counts(kind: KindCount) -> dict[str, float | None]:
    names = ("duplicates", "hits", "others", "false_hits", "precision", "recall", "false_hit_share")
    return {name: getattr(kind, name) for name in names}
