"""Engines of prefill and decode pools get a KV connector; all others are left alone."""

import json
from pathlib import Path

import pytest

from phasewise.core.errors import ConfigError
from phasewise.core.worker import Role
from phasewise.fleet.config import FleetConfig, GatewayConfig, KvTransferConfig, Levers, Pool
from phasewise.fleet.engines.command import engine_command, levers_of
from phasewise.fleet.engines.known_models import ServedModel
from phasewise.fleet.local.placement import EnginePlace, Machine
from phasewise.fleet.local.plan import plan_fleet
from phasewise.fleet.local.port_check import wanted_ports
from tests.fleet.builders import make_engine

MODEL = ServedModel("org/name", "org/name", is_folder=False)
PREFILL, DECODE = Pool(name="p", role=Role.PREFILL), Pool(name="d", role=Role.DECODE)
HOME = Path("/home/x")
OWN = ("--kv-transfer-config", '{"kv_connector":"NixlConnector","kv_role":"kv_both"}')


def command(pool, device="cpu", lease_s=30):
    place = EnginePlace(
        "x-0", pool, 8100, (0,) if device == "cpu" else (), (), () if device == "cpu" else (3,)
    )
    return engine_command(place, make_engine(device), MODEL, lease_s)


def connector(made):
    return json.loads(made.argv[made.argv.index("--kv-transfer-config") + 1])


@pytest.mark.parametrize(("pool", "kv_role"), [(PREFILL, "kv_producer"), (DECODE, "kv_consumer")])
def test_each_side_gets_its_part_of_the_connector_and_a_side_channel(pool, kv_role):
    made = command(pool, lease_s=45)
    assert connector(made) == {
        "kv_connector": "NixlConnector",
        "kv_role": kv_role,
        "kv_load_failure_policy": "fail",
        "kv_connector_extra_config": {"kv_lease_duration": 45},
        "kv_buffer_device": "cpu",
    }
    assert made.env["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "127.0.0.1"
    assert made.env["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "28100"
    assert made.env["UCX_TLS"] == "tcp,sm,self"


def test_on_gpus_the_engine_chooses_buffers_and_transport_itself():
    made = command(PREFILL, "cuda")
    assert "kv_buffer_device" not in connector(made)
    assert "UCX_TLS" not in made.env
    assert made.env["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "28100"


def test_an_engine_that_takes_both_phases_gets_none_of_it():
    made = command(Pool())
    assert "--kv-transfer-config" not in made.argv
    assert [name for name in made.env if "NIXL" in name or "UCX" in name] == []


def test_a_pools_own_connector_is_not_joined_by_ours_but_has_its_side_channel():
    made = command(Pool(name="p", role=Role.PREFILL, engine_flags=OWN))
    assert made.argv.count("--kv-transfer-config") == 1
    assert connector(made)["kv_role"] == "kv_both"
    assert made.env["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "28100"


@pytest.mark.parametrize(
    ("role", "own", "chunk_tokens", "running"),
    [
        (Role.PREFILL, Levers(), 8192, 16),
        (Role.DECODE, Levers(), 512, 256),
        (Role.MIXED, Levers(), None, None),
        (Role.DECODE, Levers(max_num_seqs=1024), 1024, 1024),
        (Role.DECODE, Levers(max_num_batched_tokens=64), 64, 64),
        (Role.DECODE, Levers(max_num_batched_tokens=4096, max_num_seqs=16), 4096, 16),
        (Role.PREFILL, Levers(max_num_seqs=2), 8192, 2),
    ],
)
def test_presets_fill_what_the_pool_leaves_out_and_fit_what_it_says(role, own, chunk_tokens, running):
    levers = levers_of(Pool(role=role, levers=own))
    assert (levers.max_num_batched_tokens, levers.max_num_seqs) == (chunk_tokens, running)


def test_a_disaggregated_fleet_is_planned_on_a_gpu_machine():
    fleet = FleetConfig(
        model="org/name",
        pools=(
            Pool(name="p", role=Role.PREFILL, replicas=2),
            Pool(name="d", role=Role.DECODE, gpus=2, levers=Levers(max_num_seqs=512)),
        ),
        gateway=GatewayConfig(kv_transfer=KvTransferConfig(lease_s=60)),
    )
    machine = Machine("cuda", tuple(range(32)), (0, 1, 2, 3))
    plan = plan_fleet(fleet, make_engine("cuda"), MODEL, machine, HOME)
    assert [(it.name, it.role, it.gpus, it.side_port) for it in plan.engines] == [
        ("p-0", Role.PREFILL, (0,), 28100),
        ("p-1", Role.PREFILL, (1,), 28101),
        ("d-0", Role.DECODE, (2, 3), 28102),
    ]
    assert [worker.slots for worker in plan.gateway_file.workers] == [16, 16, 512]
    leases = {
        json.loads(it.process.argv[it.process.argv.index("--kv-transfer-config") + 1])[
            "kv_connector_extra_config"
        ]["kv_lease_duration"]
        for it in plan.engines
    }
    assert leases == {60}
    assert "the KV side channel of engine d-0" in [port.wanted_by for port in wanted_ports(plan)]


def test_disaggregated_phases_need_nixl_in_the_engines_environment():
    fleet = FleetConfig(pools=(PREFILL, DECODE))
    with pytest.raises(ConfigError, match=r"pools\.p\.role is 'prefill', but .* has no NIXL"):
        plan_fleet(fleet, make_engine(nixl=False), MODEL, Machine("cpu", (0, 1)), HOME)
