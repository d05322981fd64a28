"""Measure two servers, compare them, diagnose the second, and calculate what its model needs elsewhere.

    python examples/measure_and_judge.py http://127.0.0.1:8000 http://127.0.0.1:8001

Prints one line per answer. Exit code 1 if B is worse than A in any metric, 2 on an error.
"""

from __future__ import annotations

import argparse
import sys

import phasewise


def main() -> int:
    """Ask each of the four functions once."""
    options = parsed()
    small = {
        "requests": options.requests,
        "prompt_tokens": options.prompt_tokens,
        "output_tokens": options.output_tokens,
    }
    try:
        for name, url in (("A", options.a), ("B", options.b)):
            show(name, phasewise.bench(url, concurrency=2, slo="ttft=500ms,tpot=50ms", **small))
        result = phasewise.compare(options.a, options.b, concurrency=2, pairs=4, control_pairs=0, **small)
        verdict = phasewise.diagnose(options.b, probe=True)
        sheet = phasewise.model_sheet(options.model, gpu="H100", rate=10)
    except phasewise.PhasewiseError as error:
        print(f"error: {error.message}\nhint: {error.hint}", file=sys.stderr)
        return 2
    ttft = result.of("ttft_p50")
    if result.failures:
        print(result.failures)
    print(f"B against A: TTFT p50 {ttft.verdict}, change {ttft.change}, interval {ttft.interval}")
    print(f"B: {verdict.sentence} (confidence: {verdict.confidence})")
    for fix in () if verdict.advice is None else verdict.advice.fixes:
        print(f"  try: {fix.what}")
    print(f"{options.model}: {sheet.fact('kv_bytes_per_token').text} of KV cache per token")
    return 1 if any(each.verdict == "worse" for each in result.comparisons) else 0


def show(name: str, result: phasewise.BenchResult) -> None:
    """One server in a line."""
    shown = {"TTFT": result.ttft_s, "TPOT": result.tpot_s, "ITL": result.itl_s, "E2E": result.e2e_s}
    medians = (f"{metric} p50 {seconds(summary.p50)}" for metric, summary in shown.items())
    print(f"{name}: {', '.join(medians)}; {result.report.succeeded} of {result.report.offered} succeeded")


def seconds(value: float | None) -> str:
    """A latency; a dash if there is none."""
    return "-" if value is None else f"{value:.4f} s"


def parsed() -> argparse.Namespace:
    """The options of this script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("a")
    parser.add_argument("b")
    parser.add_argument("--model", default="examples/models/llama-3-8b.json", help="for the model sheet")
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--prompt-tokens", type=int, default=200)
    parser.add_argument("--output-tokens", type=int, default=40)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
