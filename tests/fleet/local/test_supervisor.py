"""Real processes under a supervisor: started, followed, restarted, stopped, and nothing of them left."""

import asyncio
import errno
import os
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from phasewise.core.errors import EngineStartFailed, FleetError
from phasewise.fleet.local import member as member_module
from phasewise.fleet.local import process as proc_fs
from phasewise.fleet.local.plan import MemberPlan, ProcessPlan
from phasewise.fleet.local.run_files import read_state
from phasewise.fleet.local.state import ProcessStage, SupervisorTimes
from phasewise.fleet.local.stop import checked, stop_fleet, supervisor_lives, supervisor_stops_within_s
from phasewise.fleet.local.supervisor import Assignment, FleetSupervisor, supervise
from tests.fleet.builders import make_plan

QUICK = SupervisorTimes(
    poll_s=0.02, health_every_s=0.1, silent_after_s=0.3, stop_grace_s=1.0, kill_grace_s=3.0
)


@asynccontextmanager
async def running(plan, pace=QUICK, publish=None, **options):
    """A supervisor in this process; the states it published, and itself."""
    states = []
    supervisor = FleetSupervisor(plan, publish or states.append, pace=pace, **options)
    task = asyncio.create_task(supervisor.run())
    try:
        yield supervisor, states, task
    finally:
        if not task.done():
            supervisor.stop()
        await asyncio.gather(task, return_exceptions=True)
        assert_nothing_left(supervisor.state)
        for state in states:
            for member in state.members:
                assert member.process is None or proc_fs.living_in_group(member.process) == []


def assert_nothing_left(state):
    assert left_of(state) == []
    assert not Path(state.scratch).exists()


async def wait_for(condition, within_s=60.0):
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not come true"
        await asyncio.sleep(0.02)


def stages_of(states, name):
    seen = []
    for state in states:
        stage = next(member.stage for member in state.members if member.name == name)
        if not seen or seen[-1] is not stage:
            seen.append(stage)
    return seen


async def test_members_go_through_their_stages_to_ready_and_stop(tmp_path):
    async with running(make_plan(tmp_path, "--ready-after-s", "0.5")) as (supervisor, states, task):
        await wait_for(lambda: supervisor.state.all_ready)
        supervisor.stop()
        await task
    assert stages_of(states, "main-0") == [
        *(ProcessStage.STARTING, ProcessStage.LOADING, ProcessStage.READY),
        *(ProcessStage.STOPPING, ProcessStage.STOPPED),
    ]


async def test_a_killed_engine_is_restarted_and_its_child_does_not_linger(tmp_path):
    async with running(make_plan(tmp_path, "--with-child")) as (supervisor, states, _):
        await wait_for(lambda: supervisor.state.all_ready)
        first = supervisor.state.engines[0].process
        assert len(proc_fs.living_in_group(first)) == 2
        os.kill(first.pid, signal.SIGKILL)
        await wait_for(lambda: supervisor.state.engines[0].restarts == 1 and supervisor.state.all_ready)
        assert proc_fs.living_in_group(first) == []
        assert supervisor.state.engines[0].process != first
        notes = [
            state.engines[0].note for state in states if state.engines[0].stage is ProcessStage.BACKING_OFF
        ]
    assert notes[0] == "killed by SIGKILL; starts again in 1 s"


def with_traffic(plan):
    """The same fleet, beside which a process plays requests to the gateway."""
    process = ProcessPlan(
        argv=(sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"),
        log=str(Path(plan.home) / "logs" / "traffic.log"),
    )
    traffic = MemberPlan(name="traffic", process=process, port=plan.gateway.port, url=plan.gateway.url)
    return plan.model_copy(update={"traffic": traffic})


async def test_traffic_is_restarted_and_ends_before_the_gateway_drains(tmp_path):
    plan = with_traffic(make_plan(tmp_path, gateway_options=("--drain-s", "0.5")))
    async with running(plan) as (supervisor, _, task):
        await wait_for(lambda: supervisor.state.all_ready)
        os.kill(supervisor.state.traffic.process.pid, signal.SIGKILL)
        await wait_for(lambda: supervisor.state.traffic.restarts == 1 and supervisor.state.all_ready)
        assert (await checked(supervisor.state)).traffic.stage is ProcessStage.READY
        supervisor.stop()
        await wait_for(lambda: supervisor.state.gateway.stage is ProcessStage.DRAINING)
        await wait_for(lambda: proc_fs.living_in_group(supervisor.state.traffic.process) == [], 0.4)
        await task
    assert [it.stage for it in supervisor.state.members] == [ProcessStage.STOPPED] * 3


async def test_a_gateway_without_engines_waits_and_is_left_alone(tmp_path):
    plan = make_plan(tmp_path, gateway_options=("--health-status", "503"))
    pace = SupervisorTimes(poll_s=0.02, hopeless_after_s=0.2, silent_after_s=0.1)
    async with running(plan, pace) as (supervisor, _, _):
        await wait_for(lambda: supervisor.state.gateway.stage is ProcessStage.WAITING)
        await asyncio.sleep(0.5)
        assert supervisor.state.gateway.restarts == 0


async def test_an_engine_that_answers_no_more_is_called_silent_then_restarted(tmp_path):
    pace = SupervisorTimes(
        poll_s=0.02, health_every_s=0.05, health_timeout_s=0.2, silent_after_s=0.3, hopeless_after_s=1.0
    )
    async with running(make_plan(tmp_path), pace) as (supervisor, states, _):
        await wait_for(lambda: supervisor.state.all_ready)
        os.kill(supervisor.state.engines[0].process.pid, signal.SIGSTOP)
        await wait_for(lambda: supervisor.state.engines[0].restarts == 1 and supervisor.state.all_ready)
    assert ProcessStage.SILENT in stages_of(states, "main-0")


async def test_an_engine_that_never_starts_ends_the_fleet_with_its_own_words(tmp_path):
    plan = make_plan(
        tmp_path, "--ready-after-s", "9", "--die-after-s", "0.05", "--say", "ValueError: no such model"
    )
    async with running(plan) as (supervisor, _, task):
        with pytest.raises(EngineStartFailed) as raised:
            await task
    assert raised.value.message == "main-0 ended 3 times before it was ready: ValueError: no such model"
    assert plan.engines[0].process.log in raised.value.hint
    assert supervisor.state.engines[0].stage is ProcessStage.FAILED
    assert supervisor.state.failure.message == raised.value.message


async def test_a_rejected_flag_ends_the_fleet_at_once(tmp_path):
    async with running(make_plan(tmp_path, "--bogus")) as (_, _, task):
        with pytest.raises(EngineStartFailed, match=r"ended once.*unrecognized arguments: --bogus"):
            await task


async def test_an_engine_that_takes_too_long_ends_the_fleet(tmp_path):
    plan = make_plan(tmp_path, "--ready-after-s", "60")
    async with running(plan, ready_within_s=0.5) as (_, _, task):
        with pytest.raises(EngineStartFailed, match=r"not ready in 0.5 s: it is loading weights"):
            await task


async def test_a_restart_that_hangs_is_ended_and_tried_again(tmp_path):
    plan = make_plan(tmp_path, "--mark", str(tmp_path / "mark"), "--later", "hang", "--with-child")
    async with running(plan, ready_within_s=12.0) as (supervisor, states, _):
        await wait_for(lambda: supervisor.state.all_ready)
        os.kill(supervisor.state.engines[0].process.pid, signal.SIGKILL)
        await wait_for(lambda: supervisor.state.engines[0].stage is ProcessStage.LOADING)
        hanging = supervisor.state.engines[0].process
        await wait_for(lambda: supervisor.state.engines[0].stage is ProcessStage.BACKING_OFF)
        assert proc_fs.living_in_group(hanging) == []
    assert "killed: not ready in 12 s; starts again in 2 s" in [state.engines[0].note for state in states]


async def test_an_engine_whose_service_is_long_forgotten_does_not_end_the_fleet(tmp_path, monkeypatch):
    monkeypatch.setattr(member_module, "KEPT_DEATHS", 1)
    plan = make_plan(tmp_path, "--mark", str(tmp_path / "mark"), "--later", "reject")
    async with running(plan) as (supervisor, _, _):
        await wait_for(lambda: supervisor.state.all_ready)
        os.kill(supervisor.state.engines[0].process.pid, signal.SIGKILL)
        await wait_for(lambda: "code 2" in (supervisor.state.engines[0].note or ""))
        assert supervisor.state.engines[0].stage is ProcessStage.BACKING_OFF


async def test_a_state_nobody_can_write_down_neither_ends_the_fleet_nor_its_stopping(tmp_path, capsys):
    disk_is_full = False

    def publish(state):
        if disk_is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with running(make_plan(tmp_path, "--with-child"), publish=publish) as (supervisor, _, task):
        await wait_for(lambda: supervisor.state.all_ready)
        disk_is_full = True
        os.kill(supervisor.state.engines[0].process.pid, signal.SIGKILL)
        await wait_for(lambda: supervisor.state.engines[0].restarts == 1 and supervisor.state.all_ready)
        supervisor.stop()
        await task
    assert capsys.readouterr().err.count("No space left on device") == 1


async def test_a_gateway_that_cannot_start_ends_the_fleet(tmp_path):
    async with running(make_plan(tmp_path, gateway_options=("--bogus",))) as (_, _, task):
        with pytest.raises(FleetError, match="gateway ended once"):
            await task


async def test_what_ignores_the_wish_to_stop_is_killed_in_bounded_time(tmp_path):
    async with running(make_plan(tmp_path, "--ignore-term", "--with-child")) as (supervisor, _, task):
        await wait_for(lambda: supervisor.state.all_ready)
        began_s = time.monotonic()
        supervisor.stop()
        await task
        assert 1.0 <= time.monotonic() - began_s < 4.0


async def test_what_has_not_served_yet_is_not_waited_for(tmp_path):
    pace = SupervisorTimes(poll_s=0.02, stop_grace_s=60.0)
    async with running(make_plan(tmp_path, "--ignore-term", "--ready-after-s", "60"), pace) as (
        supervisor,
        _,
        task,
    ):
        await wait_for(lambda: supervisor.state.engines[0].stage is ProcessStage.LOADING)
        began_s = time.monotonic()
        supervisor.stop()
        await task
        assert time.monotonic() - began_s < 3.0


async def test_engines_run_until_the_gateway_has_finished_its_streams(tmp_path):
    plan = make_plan(tmp_path, gateway_options=("--drain-s", "1.5"))
    pace = SupervisorTimes(poll_s=0.02, stop_grace_s=0.1)
    async with running(plan, pace) as (supervisor, states, task):
        await wait_for(lambda: supervisor.state.all_ready)
        supervisor.stop()
        await wait_for(lambda: supervisor.state.gateway.stage is ProcessStage.DRAINING)
        gateway, engine = supervisor.state.gateway, supervisor.state.engines[0]
        while proc_fs.is_alive(gateway.process):
            assert proc_fs.is_alive(engine.process)
            await asyncio.sleep(0.02)
        await task
    stages = [(state.gateway.stage, state.engines[0].stage) for state in states]
    draining = stages.index((ProcessStage.DRAINING, ProcessStage.READY))
    assert stages[draining + 1] == (ProcessStage.STOPPED, ProcessStage.STOPPING)


async def test_a_gateway_that_does_not_end_is_not_waited_for_for_ever(tmp_path):
    plan = make_plan(tmp_path, gateway_options=("--drain-s", "600"), drain_s=0.3)
    async with running(plan, SupervisorTimes(poll_s=0.02, drain_grace_s=0.2)) as (supervisor, _, task):
        await wait_for(lambda: supervisor.state.all_ready)
        began_s = time.monotonic()
        supervisor.stop()
        await task
        assert 0.5 <= time.monotonic() - began_s < 4.0


async def test_asked_twice_it_does_not_wait_for_streams(tmp_path):
    plan = make_plan(tmp_path, gateway_options=("--drain-s", "600"))
    async with running(plan, SupervisorTimes(poll_s=0.02)) as (supervisor, _, task):
        await wait_for(lambda: supervisor.state.all_ready)
        began_s = time.monotonic()
        supervisor.stop()
        await wait_for(lambda: supervisor.state.gateway.stage is ProcessStage.DRAINING)
        supervisor.stop()
        await task
        assert time.monotonic() - began_s < 3.0


async def test_nobody_is_killed_before_the_gateway_gave_its_streams_their_time(tmp_path):
    async with running(make_plan(tmp_path, drain_s=300.0)) as (supervisor, _, _):
        await wait_for(lambda: supervisor.state.all_ready)
        state = supervisor.state
    assert state.drain_s == 300.0
    assert supervisor_stops_within_s(state) > SupervisorTimes().longest_stop_s(300.0) > 300.0


# --- a supervisor in a process of its own ------------------------------------------------------------------


@contextmanager
def detached(plan):
    """A supervisor as `up --detach` starts it, once the fleet is ready; ends with nothing left."""
    plan.paths.plan.parent.mkdir(parents=True)
    plan.paths.plan.write_text(Assignment(plan=plan, ready_within_s=30).model_dump_json())
    process = subprocess.Popen(
        [sys.executable, "-m", "phasewise.fleet.local.supervisor", str(plan.paths.plan)],
        start_new_session=True,
    )
    state = None
    try:
        state = wait_until(lambda: (state := read_state(plan.paths)) and state.all_ready and state)
        yield process, state
    finally:
        process.kill()
        process.wait()
        wait_until(lambda: not left_of(state) and not Path(state.scratch).exists())


def wait_until(condition, within_s=60.0):
    deadline_s = time.monotonic() + within_s
    while not (result := condition()):
        assert time.monotonic() < deadline_s, "it did not come true"
        time.sleep(0.02)
    return result


def left_of(state):
    return [pid for member in state.members for pid in proc_fs.living_in_group(member.process)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_everything_and_removes_the_record(tmp_path, number):
    plan = make_plan(tmp_path, "--with-child")
    with detached(plan) as (process, state):
        assert len(left_of(state)) == 3
        process.send_signal(number)
        assert process.wait(10) == 0
        assert left_of(state) == []
        assert read_state(plan.paths) is None


def test_a_killed_supervisor_leaves_nothing_running(tmp_path):
    with detached(make_plan(tmp_path, "--with-child", "--ignore-term")) as (process, state):
        process.kill()
        process.wait()
        wait_until(lambda: not left_of(state))


def test_down_stops_a_fleet_by_its_supervisor(tmp_path):
    plan = make_plan(tmp_path, "--with-child")
    with detached(plan) as (process, state):
        # A parent that does not collect its child leaves a zombie, which must count as gone.
        stop_fleet(plan.paths, state)
        assert process.wait(1) == 0
        assert left_of(state) == []


def test_down_clears_up_after_a_killed_supervisor(tmp_path):
    plan = make_plan(tmp_path, "--with-child")
    with detached(plan) as (process, state):
        process.kill()
        process.wait()
        stop_fleet(plan.paths, state)
        assert left_of(state) == []
        assert read_state(plan.paths) is None


def test_status_sees_a_killed_engine_before_its_supervisor_does(tmp_path):
    with detached(make_plan(tmp_path)) as (process, state):
        process.send_signal(signal.SIGSTOP)
        os.kill(state.engines[0].process.pid, signal.SIGKILL)
        wait_until(lambda: not proc_fs.is_alive(state.engines[0].process))
        now = asyncio.run(checked(state))
        assert now.engines[0].stage is ProcessStage.DEAD
        assert now.gateway.stage is ProcessStage.READY
        assert supervisor_lives(now)


def test_status_does_not_take_a_stranger_for_an_engine(tmp_path):
    with detached(make_plan(tmp_path)) as (_, state):
        engine = state.engines[0]
        reused = engine.process.model_copy(update={"start_ticks": engine.process.start_ticks - 1})
        stale = state.model_copy(update={"engines": (engine.model_copy(update={"process": reused}),)})
        assert asyncio.run(checked(stale)).engines[0].stage is ProcessStage.DEAD
        assert proc_fs.living_in_group(reused) == []


def test_a_second_supervisor_is_rejected(tmp_path):
    plan = make_plan(tmp_path)
    with detached(plan), pytest.raises(FleetError, match="running already"):
        supervise(plan, 5.0)
