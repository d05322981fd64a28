"""Builders for summaries: a window in which all is well, and whatever a test changes in it."""

from phasewise.core.latency import PartTime, Stall
from phasewise.core.slo import Slo
from phasewise.core.timeline import Part, Source
from phasewise.diagnosis.analysis.engine_load import EngineLoad, EngineSurroundings, SeenBy, StepShape
from phasewise.diagnosis.analysis.prefix_use import PrefixUse
from phasewise.diagnosis.analysis.stall_causes import ExplainedStall, StallCause
from phasewise.diagnosis.analysis.streams import StreamSummary
from phasewise.diagnosis.analysis.token_ledger import TokenLedger
from phasewise.diagnosis.analysis.ttft import StartSummary
from phasewise.diagnosis.analysis.window_summary import WindowSummary, WorkloadShape
from phasewise.diagnosis.rules.find import explain

SLO = Slo(ttft_s=1.0, tpot_s=0.1)
REQUESTS = 20


def make_start(unexplained_s=0.0, requests=REQUESTS, source=Source.STEP_RECORD, **fields):
    """A start of these parts, named as the parts are; late if they take longer than the objective."""
    parts = {Part(name.removesuffix("_s")): fields.pop(name) for name in list(fields) if _is_part(name)}
    ttft_s = sum(parts.values()) + unexplained_s
    late = requests if ttft_s > SLO.ttft_s else 0
    return StartSummary(
        **{
            "requests": requests,
            "unanswered": 0,
            "timed": requests,
            "step_timed": requests,
            "ttft_p50_s": ttft_s,
            "ttft_p90_s": ttft_s,
            "parts": tuple(PartTime(part, source, seconds) for part, seconds in parts.items()),
            "parts_mean_s": ttft_s,
            "unexplained_s": unexplained_s,
            "unexplained_share_p50": None,
            "unexplained_abs_p50_s": None,
            "late": late,
            "lost_s": late * max(0.0, ttft_s - SLO.ttft_s),
            **fields,
        }
    )


def _is_part(name):
    return name.removesuffix("_s") in set(Part) and name.endswith("_s")


def make_stream(ledger=None, stalls=(), streams=REQUESTS, tokens=50, **fields):
    """Streams whose mean token is the ledger's sum, with these stalls among them."""
    ledger = ledger or TokenLedger(step_s=0.05)
    reported = (ledger.floor_s or 0.0) + (ledger.batch_s or 0.0) + (ledger.kv_read_s or 0.0)
    rest = ("prompts_s", "preempted_s", "paused_s", "client_s", "cold_s", "unexplained_s")
    tpot_s = (reported or ledger.step_s) + sum(getattr(ledger, name) for name in rest)
    stalled_s = sum(found.stall.excess_s for found in stalls)
    lost_s = max(streams * tokens * max(0.0, tpot_s - SLO.tpot_s), stalled_s)
    return StreamSummary(
        **{
            "streams": streams,
            "step_timed": streams,
            "tpot_mean_s": tpot_s,
            "tpot_p50_s": tpot_s,
            "tpot_p90_s": tpot_s,
            "gap_p50_s": 0.05,
            "gap_p99_s": tpot_s,
            "gap_max_s": 2.0,
            "step_s": ledger.step_s,
            "chunk_excess_s": ledger.prompts_s,
            "unexplained_s": ledger.unexplained_s,
            "slow": streams if lost_s else 0,
            "lost_s": lost_s,
            "stall_lost_s": stalled_s,
            "stalls": tuple(stalls),
            "ledger": ledger,
            **fields,
        }
    )


def make_stall(cause=StallCause.PREFILL_CHUNK, seconds=3.0, **fields):
    return ExplainedStall("r1", Stall(1.0, seconds, 0.05), cause, **fields)


def make_workload(**fields):
    return WorkloadShape(
        **{
            "requests": REQUESTS,
            "rate_per_s": 1.0,
            "prompt_p50_tokens": 500.0,
            "prompt_p90_tokens": 800.0,
            "output_p50_tokens": 50.0,
            "output_p90_tokens": 80.0,
            "cached_share": 0.0,
            "shared_share": 0.0,
            **fields,
        }
    )


def make_engine_load(**fields):
    return EngineLoad(
        **{
            "running_mean": 4.0,
            "running_max": 4,
            "waiting_mean": 5.0,
            "waiting_max": 9,
            "kv_usage_max": 0.3,
            "waited_share": 0.9,
            "kv_full_share": 0.0,
            "capped_share": 0.0,
            "growth": 0.0,
            **fields,
        }
    )


def make_steps(**fields):
    return StepShape(
        **{
            "steps": 400,
            "busy_share": 0.95,
            "chunk_p50_tokens": 500.0,
            "budget_tokens": None,
            "decode_step_p50_s": 0.05,
            "lone_step_s": 0.05,
            "tokens_per_stream_step": 1.0,
            **fields,
        }
    )


def make_engine(name="w0", requests=REQUESTS, **fields):
    return EngineSurroundings(name, requests, **fields)


def make_prefix(**fields):
    return PrefixUse(
        **{"shared": 0.8, "shared_here": 0.8, "kept": 0.8, "cached": 0.0, "repeated": None, **fields}
    )


def make_summary(start=None, stream=None, engines=(), workload=None, **fields):
    return WindowSummary(
        **{
            "window_s": 20.0,
            "seen_by": SeenBy.GATEWAY,
            "start": start or make_start(prefill_s=0.2),
            "stream": stream or make_stream(),
            "workload": workload or make_workload(),
            "outcomes": (("succeeded", REQUESTS),),
            "engines": tuple(engines),
            **fields,
        }
    )


def causes(summary, slo=SLO):
    """What the rules find, the most costly first."""
    return [finding.cause for finding in explain(summary, slo).findings]


def the_finding(summary, cause, slo=SLO):
    """The finding of this cause."""
    return next(finding for finding in explain(summary, slo).findings if finding.cause is cause)
