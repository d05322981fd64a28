"""How often is a judge wrong about pairs of questions, planted as a gateway plants them, and labelled ones?

    python benchmarks/judge_bound.py --url URL --model MODEL [--score] [--pairs 400] [--json]
    python benchmarks/judge_bound.py --cross-encoder FOLDER [--threshold 0.5] [--pairs 400] [--json]

The first asks an engine or gateway, as the answer cache does: one token of a chat, or /score. The second runs
a cross-encoder in ONNX (model.onnx and tokenizer.json, one logit) in this process, both ways, and takes the
lower score. Questions are those of near_misses/questions/english.toml; answers are a constant, for nobody can
know them here.

    planted     wrong "yes" among planted pairs that differ, wrong "no" among equal ones, and the bound by
    which a
                gateway decides: it trusts the judge if wrong_yes_at_most is within 1%
    labelled    the same for near misses and paraphrases of the library: what planted pairs stand for
    trusted     whether such a judge would be trusted now; refuted: whether it is proven to be worse than that
    seconds_per_pair, by the wall
"""

from __future__ import annotations

import argparse
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from near_misses.pairs import make_pairs
from near_misses.sets import library
from script import command_line, interpreter, print_record, say

from phasewise.fleet.config import SemanticConfig
from phasewise.semantic_match.bound import Share
from phasewise.semantic_match.evidence import Budget, JudgeRecord
from phasewise.semantic_match.judging import judge_messages, read_verdict
from phasewise.semantic_match.lessons import LessonKind
from phasewise.semantic_match.planted import plant

ANSWER = "You find this in your account, under Help. Our staff will be glad to assist you further."
SEED = 41
Judge = Callable[[str, str], bool]


def main() -> None:
    """Ask the judge about all pairs, and print the record."""
    options = parsed()
    judge = cross_encoder(options) if options.cross_encoder else over_http(options)
    config = SemanticConfig()
    record = JudgeRecord(Budget(config.max_wrong_answers, config.confidence))
    began_s = time.monotonic()
    rng = Random(SEED)
    different = equal = Share()
    pairs = make_pairs(library("english"), SEED, options.pairs)
    for number, pair in enumerate(pairs):
        for kind in LessonKind.PLANTED_DIFFERENT, LessonKind.PLANTED_EQUAL:
            edited = plant(pair.a, kind, rng.random)
            if edited is not None:
                record.learn(kind, judge(edited, pair.a) is (kind is LessonKind.PLANTED_EQUAL))
        right = judge(pair.b, pair.a) is pair.duplicate
        if pair.duplicate:
            equal = equal.after(right)
        else:
            different = different.after(right)
        if number % 50 == 49:
            say(f"{number + 1} of {len(pairs)}: {told(record.different)}, labelled {told(different)}")
    asked = sum(it.right + it.wrong for it in (record.different, record.equal, different, equal))
    print_record(
        {
            "judge": options.model or Path(options.cross_encoder).name,
            "interpreter": interpreter(),
            "planted": facts(record.different, record.equal) | {"wrong_yes_at_most": record.most_wrong_yes},
            "labelled": facts(different, equal),
            "budget": config.max_wrong_answers,
            "trusted": record.is_trusted,
            "refuted": record.is_refuted,
            "seconds_per_pair": round((time.monotonic() - began_s) / max(asked, 1), 4),
        },
        options,
    )


def parsed() -> argparse.Namespace:
    """The options: a judge over HTTP, or one in this process."""
    parser = command_line(__doc__, quick="few pairs: proves that the script runs")
    parser.add_argument("--url", help="an engine or a gateway, without /v1")
    parser.add_argument("--model", help="the judging model")
    parser.add_argument("--score", action="store_true", help="ask /score instead of a chat")
    parser.add_argument("--cross-encoder", type=Path, help="a folder with model.onnx and tokenizer.json")
    parser.add_argument("--threshold", type=float, default=0.5, help="the least score of a yes")
    parser.add_argument("--pairs", type=int, default=400)
    options = parser.parse_args()
    if bool(options.url and options.model) == bool(options.cross_encoder):
        parser.error("give --url and --model, or --cross-encoder")
    if options.quick:
        options.pairs = 6
    return options


def over_http(options: argparse.Namespace) -> Judge:
    """A judge that is asked as a gateway asks it."""

    def approves(asked: str, stored: str) -> bool:
        if options.score:
            reply = post(f"{options.url}/score", {"text_1": asked, "text_2": stored})
            return bool(reply["data"][0]["score"] >= options.threshold)
        messages = judge_messages(asked, stored, ANSWER)
        body = {"messages": messages, "temperature": 0, "max_tokens": 1}
        reply = post(f"{options.url}/v1/chat/completions", body)
        return read_verdict(reply["choices"][0]["message"]["content"])

    def post(url: str, body: dict[str, Any]) -> Any:  # noqa: ANN401 - JSON
        data = json.dumps({"model": options.model, **body}).encode()
        request = urllib.request.Request(url, data, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=120) as reply:
                return json.loads(reply.read())
        except urllib.error.URLError as error:
            raise SystemExit(f"error: {url}: {error}. hint: start the judge first") from error

    return approves


def cross_encoder(options: argparse.Namespace) -> Judge:
    """A judge in this process: the lower of both directions' scores."""
    onnxruntime, tokenizers = import_module("onnxruntime"), import_module("tokenizers")
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    model = onnxruntime.InferenceSession(str(options.cross_encoder / "model.onnx"), settings)
    tokenizer = tokenizers.Tokenizer.from_file(str(options.cross_encoder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(256)

    def score(one: str, other: str) -> float:
        encoded = tokenizer.encode(one, other)
        given = {
            "input_ids": encoded.ids,
            "attention_mask": encoded.attention_mask,
            "token_type_ids": encoded.type_ids,
        }
        inputs = {each.name: np.array([given[each.name]], np.int64) for each in model.get_inputs()}
        return float(1 / (1 + np.exp(-model.run(None, inputs)[0].ravel()[0])))

    return lambda asked, stored: min(score(asked, stored), score(stored, asked)) >= options.threshold


def facts(different: Share, equal: Share) -> dict[str, Any]:
    """Counts for the record."""
    return {
        "different": different.right + different.wrong,
        "wrong_yes": different.wrong,
        "equal": equal.right + equal.wrong,
        "wrong_no": equal.wrong,
    }


def told(share: Share) -> str:
    """Wrong "yes" for people."""
    return f"{share.wrong} of {share.right + share.wrong} wrong yes"


if __name__ == "__main__":
    main()
