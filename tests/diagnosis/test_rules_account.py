"""What is claimed is claimed once: causes never add up to more than there is."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise.core.timeline import Part
from phasewise.diagnosis.analysis.engine_load import Drafts, EngineLoad, EngineSurroundings, StepShape
from phasewise.diagnosis.analysis.prefix_use import PrefixUse
from phasewise.diagnosis.analysis.stall_causes import StallCause
from phasewise.diagnosis.analysis.token_ledger import TokenLedger
from phasewise.diagnosis.analysis.window_summary import Trust
from phasewise.diagnosis.finding import Cause, Phase
from phasewise.diagnosis.rules.case import Account, Claim, Taken, open_start, open_stream
from phasewise.diagnosis.rules.find import START_RULES, STREAM_RULES, explain, share_out
from tests.benchmark.calibrate.builders import make_fit
from tests.diagnosis.summaries import SLO, causes, make_stall, make_start, make_stream, make_summary

seconds = st.floats(0.0, 5.0)
shares = st.floats(0.0, 1.0)
loads = st.floats(0.0, 64.0)


def maybe(strategy):
    return st.none() | strategy


engine_loads = st.builds(
    EngineLoad,
    loads, st.integers(0, 64), loads, st.integers(0, 64), shares, shares, shares, shares, shares,
    st.floats(-20.0, 20.0),
)  # fmt: skip
shapes = st.builds(
    StepShape,
    st.integers(0, 1000), shares, maybe(loads), maybe(st.integers(1, 4096)), maybe(seconds), maybe(seconds),
    maybe(st.floats(1.0, 5.0)),
)  # fmt: skip
engines = st.builds(
    EngineSurroundings,
    name=st.sampled_from(["w0", "w1"]),
    requests=st.integers(0, 50),
    prefix_cache_on=maybe(st.booleans()),
    preemptions=maybe(loads),
    engine_load=maybe(engine_loads),
    steps=maybe(shapes),
    drafts=maybe(st.builds(Drafts, loads, loads, loads)),
    front_end_cores=maybe(st.floats(0.0, 2.0)),
    cpu_wait_share=maybe(shares),
    round_trip_s=maybe(seconds),
    weights_read_s=maybe(seconds),
)
starts = st.builds(
    make_start,
    unexplained_s=st.floats(-0.5, 5.0),
    cold_s=maybe(seconds),
    **{f"{part}_s": seconds for part in Part if part is not Part.DECODE},
)
ledgers = st.builds(
    TokenLedger,
    seconds, maybe(seconds), maybe(seconds), maybe(seconds), seconds, seconds, seconds, seconds, seconds,
    st.floats(-0.5, 5.0),
)  # fmt: skip
streams = st.builds(
    make_stream,
    ledgers,
    st.lists(st.builds(make_stall, st.sampled_from(StallCause), st.floats(0.5, 9.0)), max_size=4),
)
summaries = st.builds(
    make_summary,
    start=starts,
    stream=streams,
    engines=st.lists(engines, max_size=2),
    prefix=maybe(st.builds(PrefixUse, shares, shares, shares, maybe(shares), maybe(shares))),
    trust=st.builds(Trust, lag_mean_s=maybe(seconds), lag_p90_s=maybe(seconds), ttft_drift=maybe(seconds)),
    fit=st.sampled_from([None, make_fit()]),
)


@settings(max_examples=60)
@given(summaries)
def test_causes_never_add_up_to_more_than_their_phase(summary):
    explained = explain(summary, SLO)
    for phase, lost_s in ((Phase.START, summary.start.lost_s), (Phase.STREAM, summary.stream.lost_s)):
        found = [finding for finding in explained.findings if finding.phase is phase]
        assert sum(finding.share for finding in found) <= 1 + 1e-6
        assert sum(finding.lost_s for finding in found) <= lost_s * (1 + 1e-6)
        assert len({finding.cause for finding in found}) == len(found)
        assert -1e-6 <= explained.unexplained.get(phase, 0.0) <= 1 + 1e-6


@settings(max_examples=60)
@given(summaries)
def test_rules_leave_an_account_in_order(summary):
    for case, rules in (
        (open_start(summary, summary.start, SLO), START_RULES),
        (open_stream(summary, summary.stream, SLO), STREAM_RULES),
    ):
        case.account.check_invariants()
        for rule in rules:
            before = case.account.unclaimed
            claim = rule(case)
            case.account.check_invariants()
            taken = claim.taken if claim is not None else Taken()
            assert case.account.unclaimed.seconds == pytest.approx(before.seconds - taken.seconds)
            assert case.account.unclaimed.stall_share == pytest.approx(
                before.stall_share - taken.stall_share, abs=1e-9
            )


@settings(max_examples=60)
@given(summaries)
def test_phases_that_meet_their_objective_have_no_cause(summary):
    well = replace(
        summary,
        start=replace(summary.start, late=0, lost_s=0.0),
        stream=replace(summary.stream, slow=0, lost_s=0.0),
    )
    assert all(
        finding.phase is Phase.MEASUREMENT and not finding.lost_s for finding in explain(well, SLO).findings
    )


def test_what_was_taken_is_gone():
    account = Account({"a": Taken(3.0, 0.6), "b": Taken(1.0, 0.2)})
    assert account.take(0.5, "a") == Taken(1.5, 0.3)
    assert account.take_seconds(1.25, "a", "b").seconds == pytest.approx(1.25)
    assert account.seconds("a", "b") == pytest.approx(1.25)
    assert account.take_seconds(9.0, "a", "b").seconds == pytest.approx(1.25)
    assert account.take(1.0, "a", "b", "c") == Taken(0.0, 0.0)


def test_an_account_that_was_overdrawn_is_noticed():
    account = Account({"a": Taken(1.0, 1.2)})
    with pytest.raises(AssertionError):
        account.check_invariants()


def claim(cause, seconds, stall_share=0.0):
    return Claim(cause, Taken(seconds, stall_share), (), "")


def test_the_objective_pays_for_what_a_request_needs_by_itself_first():
    claims = [claim(Cause.CHUNKS_SMALL, 1.0), claim(Cause.LONG_PROMPTS, 1.2)]
    loss = share_out(claims, Taken(0.2), objective_s=1.0)
    assert loss.shares == pytest.approx((1.0 / 1.4, 0.2 / 1.4))
    assert loss.unexplained == pytest.approx(0.2 / 1.4)


def test_a_trifle_on_top_of_what_is_needed_is_not_to_blame():
    claims = [claim(Cause.OVERLOAD, 0.1), claim(Cause.LONG_PROMPTS, 1.0)]
    assert share_out(claims, Taken(), objective_s=1.0).shares == pytest.approx((0.1 / 1.1, 1.0 / 1.1))


def test_what_is_lost_by_stalls_goes_to_their_causes():
    claims = [claim(Cause.SLOW_CLIENT, 0.1, stall_share=1.0), claim(Cause.DECODE_FLOOR, 0.3)]
    assert share_out(claims, Taken(), 0.1, by_stalls=0.6).shares == pytest.approx((0.6 + 0.4 / 3, 0.8 / 3))


def test_what_others_add_is_no_cause_of_its_own_if_a_request_is_too_slow_alone():
    claims = [claim(Cause.OVERLOAD, 0.4), claim(Cause.LONG_PROMPTS, 0.3), claim(Cause.ENGINE_PAUSES, 0.1)]
    too_slow_alone, on_time_alone = (share_out(claims, Taken(), each).shares for each in (0.2, 0.4))
    assert too_slow_alone == pytest.approx((0.0, 5 / 6, 1 / 6))
    assert on_time_alone == pytest.approx((0.8, 0.0, 0.2))


def test_a_cache_warmed_by_an_earlier_run_and_figures_that_drift_are_said_though_all_is_well():
    trust = Trust(lag_p90_s=0.3, warm_share=0.6, ttft_drift=2.0, tpot_drift=1.1)
    assert causes(make_summary(trust=trust)) == [Cause.GENERATOR_LAG, Cause.WARM_CACHE, Cause.DRIFT]


def test_small_lags_shares_and_drifts_are_not_worth_a_word():
    trust = Trust(lag_p90_s=0.01, warm_share=0.05, ttft_drift=1.2, tpot_drift=0.8)
    assert causes(make_summary(trust=trust)) == []
