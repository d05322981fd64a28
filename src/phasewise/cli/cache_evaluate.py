"""`phasewise cache evaluate`: what rules for matching would do to pairs of questions, offline.

It reads, embeds and prints; the counting is caching/evaluation.py's, the layout evaluation_view.py's.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import orjson
import typer

from phasewise.bench.report_page import check_available
from phasewise.caching.evaluation import Evaluation, KindCount, Pair
from phasewise.caching.evaluation import evaluate as evaluate_pairs
from phasewise.caching.guards import veto
from phasewise.cli.console import err, out
from phasewise.cli.evaluation_page import render_page
from phasewise.cli.evaluation_view import render
from phasewise.cli.live_view import live_line
from phasewise.cli.output_files import refuse_unwritable
from phasewise.cli.page_facts import command_line
from phasewise.cli.question_pairs import QuestionPair, read_pairs
from phasewise.config import HttpEmbedder, OnnxEmbedder, phasewise_home
from phasewise.errors import ConfigError, EmbedderUnreachable
from phasewise.gateway.embedders import build_embedder
from phasewise.model.caching import Vector
from phasewise.ports import Embedder


def evaluate(
    pairs: Annotated[
        Path,
        typer.Argument(
            metavar="PAIRS.TSV",
            help="Pairs of questions, separated by tabs under a first line with kind, duplicate, a and b; "
            "duplicate is 1 where one answer fits both questions, else 0.",
        ),
    ],
    model: Annotated[
        str, typer.Option(help="An embedding model on this machine: a known name or a folder.")
    ] = "minilm-l6",
    embedder_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="A server of OpenAI's /v1/embeddings instead, without the /v1."),
    ] = None,
    embedder_model: Annotated[
        str | None, typer.Option(metavar="NAME", help="The model to ask that server for.")
    ] = None,
    embedder_key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A file that holds that server's key.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Also write a page with the figures drawn.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as one JSON object.")] = False,
) -> None:
    """Count what plain cosine and the guards would serve rightly and wrongly, by kind of pair.

    Needs no gateway. What the bound learns from traffic is not part of it.
    """
    refuse_unwritable("--html", html)
    if html is not None:
        check_available()
    questions = read_pairs(pairs)
    embedder = build_embedder(
        _embedder_config(model, embedder_url, embedder_model, embedder_key_file),
        phasewise_home(os.environ),
    )
    evaluations = evaluate_pairs(asyncio.run(_judge(questions, embedder)))
    if html is not None:
        page = render_page(evaluations, pairs.name, embedder.space, command_line())
        html.write_text(page, encoding="utf-8")
        err.print(f"wrote {html}", markup=False, soft_wrap=True)
    if as_json:
        told = {"pairs": len(questions), "embedder": embedder.space, "rules": [*map(_facts, evaluations)]}
        typer.echo(orjson.dumps(told).decode())
    else:
        out.print(render(evaluations, len(questions), embedder.space))


def _embedder_config(
    model: str, url: str | None, model_there: str | None, key_file: Path | None
) -> OnnxEmbedder | HttpEmbedder:
    if url is None and model_there is None and key_file is None:
        return OnnxEmbedder(model=model)
    if url is None or model_there is None:
        raise ConfigError(
            "a server of embeddings needs --embedder-url and --embedder-model",
            hint="such as --embedder-url http://127.0.0.1:8000 --embedder-model bge-small",
        )
    return HttpEmbedder(
        kind="http", url=url, model=model_there, api_key_file=str(key_file) if key_file else None
    )


async def _judge(questions: Sequence[QuestionPair], embedder: Embedder) -> list[Pair]:
    judged: list[Pair] = []
    try:
        await embedder.start()
        async with live_line("pairs", lambda: f"{len(judged):,} of {len(questions):,}", sys.stderr):
            for question in questions:
                judged.append(await _judged(question, embedder))
    except EmbedderUnreachable as error:
        raise EmbedderUnreachable(error.message, hint="check the options of the embedder") from error
    finally:
        await embedder.close()
    return judged


async def _judged(question: QuestionPair, embedder: Embedder) -> Pair:
    similarity = _cosine(await embedder.embed(question.a), await embedder.embed(question.b))
    objection = veto(question.a, question.b)
    return Pair(question.kind, question.duplicate, similarity, None if objection is None else objection.guard)


def _cosine(one: Vector, other: Vector) -> float:
    return float(np.dot(np.frombuffer(one, "<f4"), np.frombuffer(other, "<f4")))


def _facts(evaluation: Evaluation) -> dict[str, Any]:
    return {
        "rule": evaluation.rule.name,
        "min_similarity": evaluation.rule.min_similarity,
        "guards": evaluation.rule.guarding,
        **_counts(evaluation.total),
        "kinds": [{"kind": kind.kind, **_counts(kind)} for kind in evaluation.kinds],
    }


def _counts(kind: KindCount) -> dict[str, float | None]:
    return {
        "duplicates": kind.duplicates,
        "hits": kind.hits,
        "others": kind.others,
        "false_hits": kind.false_hits,
        "precision": kind.precision,
        "recall": kind.recall,
        "false_hit_share": kind.false_hit_share,
    }
