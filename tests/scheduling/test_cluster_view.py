from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.core.worker import WorkerRef
from phasewise.scheduling.world import ClusterView, Health
from tests.builders import make_worker

FLEET = [
    make_worker("a", model="m"),
    make_worker("b", model="m"),
    make_worker("c", model="other"),
    make_worker("d", model="m-sql"),
    make_worker("e", model="m"),
]
NAMES = st.sampled_from([worker.name for worker in FLEET])
INCARNATIONS = st.sampled_from(["1", "2"])
CHANGES = st.one_of(
    st.tuples(st.just("mark_up"), NAMES, INCARNATIONS),
    st.tuples(st.just("mark_down"), NAMES, st.just("gone")),
    st.tuples(st.just("report_unreachable"), st.builds(WorkerRef, NAMES, INCARNATIONS), st.just("gone")),
)


def make_view(*, up=(), fleet=FLEET):
    view = ClusterView(fleet)
    for name in up:
        view.mark_up(name, "1")
    return view


def names(workers):
    return [worker.name for worker in workers]


def state_of(view, name):
    (state,) = [state for state in view.snapshot() if state.worker.name == name]
    return state


@given(changes=st.lists(CHANGES, max_size=30))
def test_usable_is_what_the_states_say_after_any_change(changes):
    view = make_view()
    for change, *arguments in changes:
        getattr(view, change)(*arguments)
        view.check_invariants()
        for model in ("m", "m-sql", "other", "unheard-of"):
            assert view.usable(model) == tuple(
                state.worker
                for state in view.snapshot()
                if state.health is Health.UP and model == state.worker.model
            )
    assert names(state.worker for state in view.snapshot()) == names(FLEET)


def test_a_worker_is_usable_only_once_it_was_seen_up():
    view = make_view()
    assert view.usable("m") == ()
    assert {state.health for state in view.snapshot()} == {Health.UNKNOWN}
    view.mark_up("a", "1")
    assert names(view.usable("m")) == ["a"]


@pytest.mark.parametrize(
    ("model", "workers"),
    [("m", ["a", "b", "e"]), ("other", ["c"]), ("m-sql", ["d"]), ("unheard-of", []), ("", [])],
)
def test_workers_are_found_once_each_by_model_and_by_adapter_in_the_order_given(model, workers):
    view = make_view(up=reversed(names(FLEET)))
    assert names(view.usable(model)) == workers


def test_models_are_known_before_anything_answers_and_after_everything_died():
    view = make_view()
    assert view.models == ("m", "other", "m-sql")
    for worker in FLEET:
        view.mark_up(worker.name, "1")
        view.mark_down(worker.name, "gone")
    assert view.models == ("m", "other", "m-sql")
    assert view.usable("m") == ()


def test_a_restarted_worker_is_another_worker():
    view = make_view(up=["a"])
    (old,) = view.usable("m")
    view.mark_up("a", "2")
    (new,) = view.usable("m")
    assert (old.ref, new.ref) == (WorkerRef("a", "1"), WorkerRef("a", "2"))
    assert new.url == old.url


def test_a_report_is_believed_of_the_incarnation_it_is_about():
    view = make_view(up=["a"])
    view.report_unreachable(WorkerRef("a", "1"), "rejected a connection")
    assert view.usable("m") == ()
    assert (state_of(view, "a").health, state_of(view, "a").note) == (Health.DOWN, "rejected a connection")


def test_a_late_report_of_a_former_incarnation_does_not_take_the_new_one_down():
    view = make_view(up=["a"])
    view.mark_up("a", "2")
    view.report_unreachable(WorkerRef("a", "1"), "rejected a connection")
    assert names(view.usable("m")) == ["a"]
    assert state_of(view, "a").note == ""


def test_a_worker_that_answers_again_is_usable_and_its_note_is_gone():
    view = make_view(up=["a"])
    view.mark_down("a", "gone")
    view.mark_up("a", "1")
    assert names(view.usable("m")) == ["a"]
    assert state_of(view, "a").note == ""


def test_the_latest_reason_for_being_down_is_kept():
    view = make_view()
    view.mark_down("a", "rejected")
    view.mark_down("a", "silent")
    assert state_of(view, "a").note == "silent"


def test_what_a_request_was_shown_does_not_change_under_it():
    view = make_view(up=["a", "b"])
    shown, seen = view.usable("m"), view.snapshot()
    view.mark_down("a", "gone")
    assert names(shown) == ["a", "b"]
    assert seen[0].health is Health.UP


def test_an_answer_that_changes_nothing_leaves_what_is_kept_ready_alone():
    view = make_view(up=["a", "b"])
    ready = view.usable("m")
    view.mark_up("a", "1")
    assert view.usable("m") is ready


def test_an_index_out_of_step_with_the_states_is_noticed():
    view = make_view(up=["a"])
    view._usable = {}
    with pytest.raises(AssertionError, match="out of step"):
        view.check_invariants()
