"""A fleet's record is private, whole at every moment, and has one writer."""

import hashlib
import stat

import pytest

from phasewise.core.errors import FleetError
from phasewise.fleet.local.run_files import (
    RunPaths,
    admin_key_sha256,
    fleet_names,
    is_supervised,
    only_supervisor,
    read_state,
    write_state,
)
from phasewise.fleet.local.state import FleetState, MemberState, ProcessIdentity


def make_state(**changes):
    return FleetState(
        name="test",
        model="m",
        boot_id="b",
        supervisor=ProcessIdentity(pid=1, start_ticks=1),
        started_unix_s=1.0,
        scratch="/nowhere",
        engines=(MemberState(name="main-0", url="http://127.0.0.1:1", log="x"),),
        gateway=MemberState(name="gateway", url="http://127.0.0.1:2", log="y"),
        **changes,
    )


@pytest.fixture
def paths(tmp_path):
    return RunPaths(tmp_path / "home", "test")


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_state_comes_back_as_it_was_written(paths):
    write_state(paths, make_state())
    assert read_state(paths) == make_state()
    assert fleet_names(paths.home) == ["test"]


def test_files_are_the_users_alone(paths):
    write_state(paths, make_state())
    admin_key_sha256(paths)
    assert mode_of(paths.state) == 0o600
    assert mode_of(paths.admin_key) == 0o600
    assert mode_of(paths.state.parent) == 0o700


def test_nothing_but_the_state_is_left_by_writing(paths):
    for _ in range(3):
        write_state(paths, make_state())
    assert [path.name for path in paths.state.parent.iterdir()] == ["test.json"]


def test_nothing_is_left_by_a_write_that_fails(paths):
    paths.state.mkdir(parents=True)  # cannot be replaced by a file
    with pytest.raises(OSError, match="directory"):
        write_state(paths, make_state())
    assert [path.name for path in paths.state.parent.iterdir()] == ["test.json"]


def test_no_record_is_no_fleet(paths):
    assert read_state(paths) is None
    assert fleet_names(paths.home) == []


def test_unreadable_record_says_what_to_do(paths):
    write_state(paths, make_state())
    paths.state.write_text("{}")
    with pytest.raises(FleetError) as raised:
        read_state(paths)
    assert raised.value.hint


def test_second_supervisor_is_rejected(paths):
    assert not is_supervised(paths)
    with only_supervisor(paths):
        assert is_supervised(paths)
        with pytest.raises(FleetError, match="running already"), only_supervisor(paths):
            pass
    assert not is_supervised(paths)


def test_admin_key_is_made_once(paths):
    first = admin_key_sha256(paths)
    assert admin_key_sha256(paths) == first
    assert hashlib.sha256(paths.admin_key.read_text().strip().encode()).hexdigest() == first
