"""`phasewise replay` prints how many decisions are identical, and the first that is not."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from phasewise.cli.app import app
from phasewise.core.errors import ConfigError
from phasewise.scheduling import CacheMiss
from phasewise.scheduling.recording import DecisionRecorder
from phasewise.scheduling.rules import SchedulingRules
from tests.builders import make_request, make_worker
from tests.scheduling.worlds import RememberedLeases


@pytest.fixture
def record(tmp_path):
    """A file with one placement and one rejection."""
    events = []
    calls = DecisionRecorder(lambda event: events.append(json.dumps(event))).calls
    world = calls.new_world(SchedulingRules("least_outstanding"), [make_worker()], RememberedLeases())
    world.cluster.mark_up("w0", "1")
    for model in ("m", "unheard-of"):
        flow = calls.request_flow(make_request(model=model), world)
        next(flow)
        flow.send(CacheMiss(0.0))
        flow.close()
    path = tmp_path / "decisions"
    path.write_text("\n".join([*events, '{"event": "end", "arguments": ["stopped"]}']))
    return path


def run(*arguments):
    done = CliRunner().invoke(app, ["replay", *map(str, arguments)], env={"COLUMNS": "400"})
    return done.exit_code, done.output


def test_all_are_identical(record):
    code, output = run(record)
    assert code == 0
    assert output == (
        "2 of 2 decisions identical: 2 requests, 1 rejected, 0 grants of slots, 0 failed attempts\n"
    )


def test_a_difference_is_shown_with_both_sides(record):
    record.write_text(record.read_text().replace('"chosen": "w0"', '"chosen": "w7"'))
    code, output = run(record)
    assert code == 1
    assert "0 of 2 decisions identical" in output
    assert "at result.0.decision.chosen" in output
    assert "recorded: Generate on w7 (least_outstanding:" in output
    assert "replayed: Generate on w0 (least_outstanding:" in output


def test_json_has_every_count(record):
    code, output = run(record, "--json")
    result = json.loads(output)
    assert (code, result["decisions"], result["identical"], result["difference"]) == (0, 2, 2, None)


def test_a_record_without_its_end_is_named_so(record):
    record.write_text("\n".join(record.read_text().splitlines()[:-1]))
    assert "ends before the gateway stopped" in run(record)[1]


def test_a_line_that_was_cut_off_ends_the_record_and_a_damaged_one_is_an_error(record):
    lines = record.read_text().splitlines(keepends=True)
    record.write_text("".join(lines[:-2]) + lines[-2][:9])
    code, output = run(record)
    assert (code, "ends before the gateway stopped" in output) == (0, True)
    record.write_text("".join([lines[0], lines[1][:9] + "\n", *lines[2:]]))
    done = CliRunner().invoke(app, ["replay", str(record)])
    assert "line 2 of the record is damaged" in str(done.exception)


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    done = CliRunner().invoke(app, ["replay", str(tmp_path / "none")])
    assert isinstance(done.exception, ConfigError)
