"""The metrics of several processes as one text."""

from __future__ import annotations

from phasewise.gateway.processes.totals import add_ended, total

TEXT = b"""# HELP phasewise_requests_total Requests.
# TYPE phasewise_requests_total counter
phasewise_requests_total{model="m"} %d
# HELP phasewise_waiting_requests Requests that wait.
# TYPE phasewise_waiting_requests gauge
phasewise_waiting_requests{model="m"} %d
# HELP phasewise_event_loop_lag_seconds Lag.
# TYPE phasewise_event_loop_lag_seconds gauge
phasewise_event_loop_lag_seconds %d
"""


def numbers(text):
    return [float(line.rpartition(b" ")[2]) for line in text.splitlines() if not line.startswith(b"#")]


def keep(folder, process, text):
    (folder / f"counters-{process}").write_bytes(text)


def test_counters_and_what_waits_are_added_up_and_of_other_gauges_the_largest_counts(tmp_path):
    assert numbers(total(tmp_path, {1: TEXT % (3, 1, 4), 2: TEXT % (4, 5, 2)})) == [7, 6, 4]


def test_of_a_process_that_does_not_answer_its_counters_count(tmp_path):
    keep(tmp_path, 2, TEXT % (10, 7, 9))
    assert numbers(total(tmp_path, {1: TEXT % (3, 1, 4)})) == [13, 1, 4]


def test_what_a_process_had_counted_stays_and_is_counted_once(tmp_path):
    answers = {1: TEXT % (3, 0, 0), 2: TEXT % (4, 0, 0), 3: TEXT % (5, 0, 0)}
    for process, text in answers.items():
        keep(tmp_path, process, text)
    add_ended(tmp_path, 1)
    add_ended(tmp_path, 2)
    # The second one answered just before it ended.
    assert numbers(total(tmp_path, {2: answers[2], 3: answers[3]}))[0] == 12
    assert numbers(total(tmp_path, {3: answers[3]}))[0] == 12
    add_ended(tmp_path, 2)
    assert numbers(total(tmp_path, {3: answers[3]}))[0] == 12


def test_files_do_not_grow_in_number(tmp_path):
    for process in range(1, 400):
        keep(tmp_path, process, TEXT % (1, 0, 0))
        add_ended(tmp_path, process)
    assert [path.name for path in tmp_path.iterdir()] == ["counters-ended"]
    assert len((tmp_path / "counters-ended").read_bytes()) < 2_000
    assert numbers(total(tmp_path, {400: TEXT % (1, 0, 0)}))[0] == 400
