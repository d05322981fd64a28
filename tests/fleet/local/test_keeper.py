"""The keeper ends what a dead supervisor left, and only that."""

import subprocess
import sys
import time

import pytest

from phasewise.fleet.local.keeper import Keeper, watched_sessions

SLEEPER = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"]


@pytest.fixture
def sleepers():
    processes = [subprocess.Popen(SLEEPER, start_new_session=True) for _ in range(2)]
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def test_sessions_taken_back_are_not_watched():
    assert watched_sessions(["+1\n", "+2\n", "-1\n", "nonsense\n", "+\n"]) == {2}


def test_watched_sessions_end_with_the_pipe_and_forgotten_ones_live_on(sleepers, tmp_path):
    watched, forgotten = sleepers
    keeper = Keeper(tmp_path / "scratch")
    keeper.watch(watched.pid)
    keeper.watch(forgotten.pid)
    keeper.forget(forgotten.pid)
    time.sleep(0.2)
    assert watched.poll() is None
    keeper.close()
    assert watched.wait(5) == -15
    assert forgotten.poll() is None


def test_the_scratch_folder_goes_too(tmp_path):
    scratch = tmp_path / "scratch"
    (scratch / "main-0").mkdir(parents=True)
    Keeper(scratch).close()
    assert not scratch.exists()
