"""How often is an answer wrong that was made for another question, and what share of the chances is taken?

    python benchmarks/semantic_cache.py [--streams english:11,...] [--vectors FILE] [--picture FILE] [--json]
    python benchmarks/semantic_cache.py --quick [--json]

Questions whose answers are known, from libraries (near_misses/questions/) that whoever writes or tunes the
matching does not read: three streams in English, with odd rows of the CheckList question pairs if their file
is there, one in German and one in Spanish. Each has 20,000 requests: some repeat what was asked word by word,
some ask it in other words, some differ in one thing that matters, some are new; two kinds of near miss come
in the last third only, and a few rewordings that were right in the first two thirds are wrong in the last.
Then come 5,000 of the day after: all answers have expired, and most questions come again, in their old words
or in others. Every answer that the model gave is stored.

Arms: plain cosine .90, and the gateway's own policy (semantic_match/, with the embedding model minilm-l6)
with a judge that knows the truth, but errs in a share of all cases, real pairs and planted ones alike. In
rows, one a stream and judge:

    wrong_share       wrong answers among those that were made for another question, aliases included; its
                      exact 95% interval beside it
    budget            max_wrong_answers
    hit_share_early   of requests that ask in new words what was asked in others since answers expired last:
                      those served rightly, as a share of those that cosine .90 serves rightly; of the first
                      5,000 requests
    hit_share_late    the same of the day after
    hit_share         the same of the first 20,000; hits_by_thousand has the counts
    before_*          the same of the cache that had a grammar of English, recorded in
                      records/semantic_cache_before.json before it was removed; None for other streams
    trusted           whether the judge was trusted at the end; judge_calls is what it was asked

`missed` names every row against the promise: wrong_share over the budget, hit_share_early under 0.6 of
before, hit_share_late not over before (a judge that is not trusted must serve exact hits alone). Exit code 1
then.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from near_misses.picture import draw
from near_misses.play import CosineArm, Played, VerifiedArm, made_ready, play
from near_misses.sets import CHECKLIST, stream_of
from near_misses.tally import kind_shares, summary
from near_misses.vectors import Vectors
from script import command_line, interpreter, print_record, say

from phasewise.clients.embedding_folder import resolve_embedding_model
from phasewise.core.errors import PhasewiseError
from phasewise.fleet.config import SemanticConfig, phasewise_home

CONFIG = SemanticConfig()
STREAMS = "english:11,english:12,english:13,german:21,spanish:31"
JUDGES = ((0.0, False), (0.005, False), (0.05, False), (0.005, True))
"""In what share they err, and whether always on the same changes of words; else by chance."""
EARLY = 5
"""Thousands of requests."""
LEAST_OF_BEFORE = 0.6
BY_CHANGE = " by change"
BEFORE = Path(__file__).parent / "records" / "semantic_cache_before.json"


def main() -> None:
    """Play all streams, print a table and one JSON object."""
    options = parsed()
    vectors = Vectors(model_folder(), options.vectors)
    checklist = options.checklist if options.checklist.exists() else None
    if checklist is None:
        say(f"{options.checklist} is not there: the checklist's pairs are left out")
    before = {} if options.quick else json.loads(BEFORE.read_text(encoding="utf-8"))["streams"]
    rows: list[dict[str, Any]] = []
    for stream in options.streams.split(","):
        name, _, seed = stream.partition(":")
        requests = stream_of(name, int(seed), options.requests, options.again, checklist)
        say(f"{stream}: {len(requests):,} requests")
        played = made_ready(requests, vectors.of, CONFIG.min_similarity, options.requests)
        cosine = summary(play(played, CosineArm("cosine .90", 0.90)))
        day = options.requests // 1_000
        for errs, by_change in JUDGES:
            arm = VerifiedArm(CONFIG, int(seed), errs, by_change)
            row = {"stream": stream, "judge_errs": errs, "by_change": by_change}
            rows.append(row | figures_of(played, arm, cosine, before.get(stream), day))
            say(f"  {one_line(rows[-1])}")
    if options.picture is not None:
        options.picture.write_text(draw(rows), encoding="utf-8")
    missed = [] if options.quick else [problem for row in rows for problem in problems_of(row)]
    for problem in missed:
        say(problem)
    record = {"quick": options.quick, "embedder": vectors.space, "interpreter": interpreter()}
    print_record({**record, "rows": rows, "missed": missed}, options)
    sys.exit(1 if missed else 0)


def parsed() -> argparse.Namespace:
    """The options, with what --quick makes of them."""
    parser = command_line(__doc__, quick="one short stream: proves that the script runs")
    parser.add_argument("--requests", type=int, default=20_000, help="of each stream's first day")
    parser.add_argument("--again", type=int, default=5_000, help="of the day after")
    parser.add_argument("--streams", default=STREAMS, help="LIBRARY:SEED, separated by commas")
    parser.add_argument("--vectors", type=Path, help="a file that keeps embeddings between runs")
    parser.add_argument("--checklist", type=Path, default=CHECKLIST, help="pairs with kind, duplicate, a, b")
    parser.add_argument("--picture", type=Path, help="draw the first stream's hits, judged and wrong")
    options = parser.parse_args()
    if options.quick:
        options.requests, options.again, options.streams = 1_000, 200, "german:21"
    return options


def model_folder() -> Path:
    """Where the embedding model is."""
    try:
        return resolve_embedding_model("minilm-l6", phasewise_home(os.environ))
    except PhasewiseError as error:
        sys.exit(str(error))


def figures_of(
    played: Played, arm: VerifiedArm, cosine: dict[str, Any], before: dict[str, Any] | None, day: int
) -> dict[str, Any]:
    """One run of the policy, beside plain cosine and the cache of before; the day after begins at `day`."""
    outcomes = play(played, arm)
    figures = summary(outcomes)
    row: dict[str, Any] = {"budget": CONFIG.max_wrong_answers, **figures}
    of_cosine = cosine["hits_by_thousand"]
    for part, first, end in (("_early", 0, EARLY), ("_late", day, None), ("", 0, day)):
        row[f"hit_share{part}"] = share_of(figures["hits_by_thousand"], of_cosine, first, end)
        row[f"before{part}"] = share_of(before["hits"], of_cosine, first, end) if before else None
    row["cosine90_wrong_share"] = cosine["wrong_share"]
    row["cosine90_hits_by_thousand"] = of_cosine
    row["trusted"], row["judge_calls"] = arm.book.judge.is_trusted, arm.judge_calls
    row["wrong_kinds"] = [each.facts() for each in kind_shares(outcomes) if each.wrong]
    return row


def share_of(hits: Sequence[int], cosine: Sequence[int], first: int, end: int | None) -> float | None:
    """Hits of these thousands as a share of cosine's."""
    chances = sum(cosine[first:end])
    return round(sum(hits[first:end]) / chances, 4) if chances else None


def problems_of(row: dict[str, Any]) -> list[str]:
    """What is against the promise, in words."""
    named = f"{row['stream']}, judge errs in {row['judge_errs']:.1%}{BY_CHANGE * row['by_change']}"
    problems = []
    if row["wrong_share"] > row["budget"]:
        problems.append(f"{named}: {row['wrong_share']:.2%} wrong")
    if not row["trusted"]:
        if row["alias_hits"] + row["semantic_hits"]:
            problems.append(f"{named}: more than exact hits, with a judge that is not trusted")
    elif row["before"] is not None:
        if row["hit_share_early"] < LEAST_OF_BEFORE * row["before_early"]:
            problems.append(f"{named}: {row['hit_share_early']:.0%} of hits early")
        if row["hit_share_late"] <= row["before_late"]:
            problems.append(f"{named}: {row['hit_share_late']:.0%} of hits late")
    return problems


def one_line(row: dict[str, Any]) -> str:
    """A run's figures for people."""
    shares = ", ".join(
        f"{part} {percent(row[f'hit_share{name}'])} (before {percent(row[f'before{name}'])})"
        for part, name in (("early", "_early"), ("in all", ""), ("late", "_late"))
    )
    served = row["alias_hits"] + row["semantic_hits"]
    trust = "trusted" if row["trusted"] else "not trusted"
    return (
        f"judge errs in {row['judge_errs']:.1%}{BY_CHANGE * row['by_change']}, {trust}: "
        f"{row['wrong']} of {served:,} wrong "
        f"({row['wrong_share']:.2%}); hits of cosine .90's: {shares}; judge calls {row['judge_calls']:,}"
    )


def percent(share: float | None) -> str:
    """A share for people."""
    return "-" if share is None else f"{share:.0%}"


if __name__ == "__main__":
    main()
