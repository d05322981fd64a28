"""What the generator notes of its own prompts is what a gateway would note of them."""

from phasewise.benchmark.run import RequestRecording
from phasewise.benchmark.workload.prompts import Message
from tests.core.test_text_marks import prose


def marked(request_id, head):
    recording = RequestRecording(
        request_id=request_id,
        model="m",
        url="http://127.0.0.1/",
        intended_s=1.0,
        unix_offset_s=0.0,
        messages=(Message("system", head), Message("user", prose(1).decode())),
    )
    return recording.timeline()


def test_a_text_behind_another_head_is_recognised_within_a_run():
    one, other = marked("run-1", "Today is Monday."), marked("run-2", "Today is Wednesday.")
    assert set(one.prefix_marks).isdisjoint(other.prefix_marks)
    assert one.text_marks == other.text_marks != ()


def test_runs_do_not_know_each_others_marks():
    assert set(marked("run-1", "").text_marks).isdisjoint(marked("other-1", "").text_marks)
