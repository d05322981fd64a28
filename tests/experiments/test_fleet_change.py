"""A lever is moved in a copy of the fleet; what the file hides or does not say is a sentence."""

import pytest

from phasewise.benchmark.compare.arms import reject_occupied
from phasewise.core.errors import ConfigError, FleetError
from phasewise.diagnosis.advice.fix import LeverChange
from phasewise.experiments.fleet_change import changed_fleet
from phasewise.fleet.config import FleetConfig, Levers, Pool, load_fleet
from phasewise.fleet.local.placement import Machine
from phasewise.fleet.local.state import FleetState, MemberState, ProcessIdentity

ONE_POOL = FleetConfig(pools=(Pool(levers=Levers(max_num_seqs=1)),))
MACHINE = Machine("cpu", (0, 1))


def test_a_lever_is_moved_in_every_pool_and_reported_line_by_line():
    fleet = FleetConfig(pools=(Pool(name="a"), Pool(name="b", levers=Levers(max_num_seqs=1))))
    change = changed_fleet(fleet, LeverChange("max_num_seqs", 8), on_cpu=True)
    assert [pool.levers.max_num_seqs for pool in change.fleet.pools] == [8, 8]
    assert change.lines == (
        "pools.a.levers.max_num_seqs: the engine's default -> 8",
        "pools.b.levers.max_num_seqs: 1 -> 8",
    )
    assert fleet.pools[1].levers.max_num_seqs == 1


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (LeverChange("prefix_cache", True), "prefix_cache: the engine's default -> true"),
        (LeverChange("max_num_seqs", None), "max_num_seqs: 1 -> the engine's default"),
        (LeverChange("speculation", 5), "speculation: the engine's default -> {method: ngram, tokens: 5}"),
        (LeverChange("replicas", 2), "pools.main.replicas: 1 -> 2"),
        (
            LeverChange("kv_cache_memory_bytes", None, times=2.0),
            "kv_cache_memory_bytes: the engine's default -> 2048MiB",
        ),
        (LeverChange("max_num_seqs", None, times=4.0), "max_num_seqs: 1 -> 4"),
    ],
)
def test_every_kind_of_change_comes_to_a_fleet_that_reads_back(change, line, tmp_path):
    changed = changed_fleet(ONE_POOL, change, on_cpu=True)
    assert changed.lines[0].endswith(line)
    assert load_fleet(changed.write(tmp_path, "copy")) == changed.fleet


def test_what_a_pools_role_presets_is_reported_as_what_it_was():
    fleet = FleetConfig(pools=(Pool(name="p", role="prefill"), Pool(name="d", role="decode")))
    change = changed_fleet(fleet, LeverChange("max_num_seqs", 64), on_cpu=True)
    assert change.lines == ("pools.p.levers.max_num_seqs: 16 -> 64", "pools.d.levers.max_num_seqs: 256 -> 64")


def test_an_engine_more_is_one_more_in_the_whole_fleet():
    fleet = FleetConfig(pools=(Pool(name="a", replicas=2), Pool(name="b")))
    change = changed_fleet(fleet, LeverChange("replicas", 4), on_cpu=True)
    assert [pool.replicas for pool in change.fleet.pools] == [3, 1]
    assert change.lines == ("pools.a.replicas: 2 -> 3",)
    with pytest.raises(ConfigError, match="has 3 engines already"):
        changed_fleet(fleet, LeverChange("replicas", 3), on_cpu=True)


def test_a_flag_that_the_file_sets_past_its_levers_is_not_given_twice():
    for flag in ("--max-num-seqs", "--max-num-seqs=2"):
        fleet = FleetConfig(pools=(Pool(engine_flags=(flag,)),))
        with pytest.raises(ConfigError, match="engine_flags sets --max-num-seqs itself"):
            changed_fleet(fleet, LeverChange("max_num_seqs", 8), on_cpu=True)
    off = FleetConfig(pools=(Pool(engine_flags=("--no-enable-prefix-caching",)),))
    with pytest.raises(ConfigError, match="engine_flags"):
        changed_fleet(off, LeverChange("prefix_cache", True), on_cpu=True)


def test_what_cannot_be_multiplied_or_is_there_already_is_said():
    with pytest.raises(ConfigError, match="does not set kv_cache_memory_bytes"):
        changed_fleet(ONE_POOL, LeverChange("kv_cache_memory_bytes", None, times=2.0), on_cpu=False)
    with pytest.raises(ConfigError, match="max_num_seqs is 1 already"):
        changed_fleet(ONE_POOL, LeverChange("max_num_seqs", 1), on_cpu=True)


def running(name="other", *, port=9000, engine_port=9100, cores=(0,)):
    engine = MemberState(name="main-0", url=f"http://127.0.0.1:{engine_port}", log="", cores=cores)
    return FleetState(
        name=name,
        model="m",
        boot_id="b",
        supervisor=ProcessIdentity(pid=1, start_ticks=1),
        started_unix_s=0.0,
        scratch="",
        engines=(engine,),
        gateway=MemberState(name="gateway", url=f"http://127.0.0.1:{port}", log="", cores=(1,)),
    )


@pytest.mark.parametrize(
    ("state", "held"),
    [
        (running(), "core 0"),
        (running(cores=(7,), port=8080), "port 8080"),
        (running(cores=(7,), engine_port=18100), "18100"),
    ],
)
def test_a_running_fleet_in_the_way_is_named_with_the_command_that_stops_it(state, held):
    with pytest.raises(FleetError, match=held) as caught:
        reject_occupied(FleetConfig(), MACHINE, [state])
    assert "phasewise down other" in caught.value.hint


def test_a_fleet_that_is_not_in_the_way_is_let_be():
    reject_occupied(FleetConfig(), MACHINE, [running(cores=(7,))])
