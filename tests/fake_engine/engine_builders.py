"""Plain builders for virtual engines and what is asked of them."""

from __future__ import annotations

from phasewise.simulator.engine import EmittedToken, EngineShape, VirtualEngine, VirtualRequest

SMALL = EngineShape(
    max_model_len=64, max_num_seqs=8, max_num_batched_tokens=16, block_size=4, total_blocks=32
)
STEP_S = 1.0


def make_engine(shape=SMALL, cost=lambda work: STEP_S):
    return VirtualEngine(shape, cost)


def make_request(request_id="r", prompt=10, max_tokens=3, **fields):
    """`prompt` is a number of tokens, all different from other lengths' tokens, or the ids themselves."""
    ids = tuple(range(1000 * prompt, 1000 * prompt + prompt)) if isinstance(prompt, int) else tuple(prompt)
    fields = {"arrived_s": 0.0, "ignore_eos": True, **fields}
    return VirtualRequest(request_id, ids, max_tokens, **fields)


def run_to_end(engine, now=0.0, check=True):
    """Step until there is nothing left; the reports."""
    reports = []
    while (report := engine.step(now)) is not None:
        reports.append(report)
        now = report.step.ended_unix_s
        if check:
            engine.check_invariants()
        assert len(reports) < 10_000, "the engine makes no progress"
    return reports


def tokens_by_request(reports) -> dict[str, list[EmittedToken]]:
    by_request: dict[str, list[EmittedToken]] = {}
    for report in reports:
        for token in report.emitted:
            by_request.setdefault(token.request_id, []).append(token)
    return by_request
