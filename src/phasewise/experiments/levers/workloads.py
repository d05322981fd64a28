"""The traffic that levers are tried with: small blocks, each some seconds of work for one core."""

from __future__ import annotations

from dataclasses import replace

from phasewise.experiments.levers.catalogue import Workload
from phasewise.loadgen.workload.arrivals import ClosedLoop
from phasewise.loadgen.workload.lengths import Lengths
from phasewise.loadgen.workload.plan import PlanSpec
from phasewise.loadgen.workload.presets import Shape
from phasewise.loadgen.workload.texts import COPYING, FREE_TEXT, SHORT_ANSWERS, Written


def _plan(
    prompt_tokens: int, output: Lengths | int, at_once: int = 1, shared_prefix_tokens: int = 0
) -> PlanSpec:
    lengths = output if isinstance(output, Lengths) else Lengths.fixed(output)
    shape = Shape(
        about="made to show one lever",
        prompt=Lengths.fixed(prompt_tokens),
        output=lengths,
        shared_prefix_tokens=shared_prefix_tokens,
        shared_share=1.0 if shared_prefix_tokens else 0.0,
    )
    # A block sets its own number of requests; a plan needs an end before that.
    return PlanSpec(source=shape, load=ClosedLoop(at_once), requests=at_once)


SHARED_PROMPTS = Workload(
    "shared prompts",
    "prompts of 1,024 tokens that begin with the same 960, answers of 8, one at a time",
    _plan(1024, 8, shared_prefix_tokens=960),
    least_requests=3,
    # The first one finds nothing to share yet.
    warm_up_requests=1,
)
UNSHARED_PROMPTS = Workload(
    "unshared prompts",
    "prompts of 1,024 tokens that have nothing in common, answers of 8, one at a time",
    _plan(1024, 8),
    least_requests=3,
    warm_up_requests=1,
)
ONE_STREAM = Workload(
    "one stream", "prompts of 64 tokens, answers of 24, one at a time", _plan(64, 24), least_requests=2
)
PROMPTS_ONLY = Workload(
    "prompts only", "prompts of 768 tokens, answers of a single token, one at a time", _plan(768, 1), 4
)
LONG_PROMPT_STREAM = Workload(
    "long context", "prompts of 2,000 tokens, answers of 24, one at a time", _plan(2000, 24), least_requests=1
)
RECOMPUTED_STREAM = Workload(
    "bounded answers", "prompts of 384 tokens, answers of 8, one at a time", _plan(384, 8), least_requests=2
)
SIX_AT_ONCE = Workload(
    "six at once",
    "prompts of 64 tokens, answers of 12, six at once",
    _plan(64, 12, at_once=6),
    least_requests=6,
    requests_step=6,
)
SIXTEEN_AT_ONCE = Workload(
    "sixteen at once",
    "prompts of 64 tokens, answers of 16, sixteen at once",
    _plan(64, 16, at_once=16),
    least_requests=16,
    requests_step=16,
)
UNEVEN_ANSWERS = Workload(
    "uneven answers",
    "prompts of 64 tokens, answers of 4 to 64, eight at once",
    _plan(64, Lengths(median_tokens=14, spread=0.9, low_tokens=4, high_tokens=64), at_once=8),
    least_requests=24,
    requests_step=8,
    # The first eight find every slot free: how soon a slot is filled again shows with the others.
    warm_up_requests=8,
)
EVEN_ANSWERS = Workload(
    "even answers",
    "prompts of 64 tokens, answers of 16, eight at once",
    _plan(64, 16, at_once=8),
    least_requests=16,
    requests_step=8,
)
PROMPTS_AMID_STREAMS = Workload(
    "prompts amid streams",
    "prompts of 900 tokens that arrive while others' answers of 8 to 24 stream, three at once",
    _plan(900, Lengths(median_tokens=12, spread=0.5, low_tokens=8, high_tokens=24), at_once=3),
    least_requests=6,
    requests_step=3,
)


def _written(source: Written) -> PlanSpec:
    return PlanSpec(source=source, load=ClosedLoop(1), requests=1)


COPIES = Workload(
    "copying",
    "passages of 150 words to be repeated, 32 tokens of each, one at a time",
    _written(replace(COPYING, output_tokens=32)),
    least_requests=2,
)
STORIES = Workload(
    "free text",
    "stories, letters and explanations, 32 tokens of each, one at a time",
    _written(replace(FREE_TEXT, output_tokens=32)),
    least_requests=2,
)
FEW_WORDS = Workload(
    "short answers",
    "questions with answers of 8 tokens, one at a time",
    _written(SHORT_ANSWERS),
    least_requests=5,
)
