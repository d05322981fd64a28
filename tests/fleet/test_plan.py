"""A fleet file becomes commands, addresses and the gateway's file; a plan survives being written down."""

from pathlib import Path

import pytest

from phasewise.adapters import embedding_folder
from phasewise.config import ApiKey, FleetConfig, GatewayConfig, Pool, load_fleet
from phasewise.errors import ConfigError
from phasewise.fleet.engine_command import ServedModel
from phasewise.fleet.placement import Machine
from phasewise.fleet.plan import FleetPlan, plan_fleet
from phasewise.model.worker import Role
from tests.fleet.builders import make_engine

ROOT = Path(__file__).parents[2]
MODEL = ServedModel("smollm2-135m", "/models/smollm2-135m", is_folder=True)


def plan_of(fleet, cores=2, home=Path("/home/x"), engine=None):
    return plan_fleet(fleet, engine or make_engine(), MODEL, Machine("cpu", tuple(range(cores))), home)


def test_gateway_is_told_of_every_engine():
    plan = plan_of(FleetConfig(pools=(Pool(name="a"), Pool(name="b"))))
    workers = plan.gateway_file.workers
    assert [(it.name, it.url, it.role, it.pool) for it in workers] == [
        ("a-0", "http://127.0.0.1:8100", Role.MIXED, "a"),
        ("b-0", "http://127.0.0.1:8101", Role.MIXED, "b"),
    ]
    assert workers[0].steps_url == "http://127.0.0.1:18100"
    assert {it.model for it in workers} == {"smollm2-135m"}


def test_a_gateway_that_the_fleet_could_not_watch_is_refused():
    gateway = GatewayConfig(tls={"certificate": "c.pem", "key": "k.pem"})
    with pytest.raises(ConfigError, match=r"gateway\.tls"):
        plan_of(FleetConfig(gateway=gateway))


def test_a_cache_by_meaning_without_its_model_is_refused_before_any_engine_is_started(tmp_path):
    fleet = load_fleet(ROOT / "examples" / "semantic-cache.yaml")
    with pytest.raises(ConfigError, match="phasewise model fetch minilm-l6"):
        plan_of(fleet, home=tmp_path)


def test_without_a_recorder_no_steps_are_promised():
    plan = plan_of(FleetConfig(), engine=make_engine(plugin_version=None))
    assert plan.engines[0].steps_url is None
    assert plan.gateway_file.workers[0].steps_url is None


def test_front_end_and_gateway_get_the_spare_cores():
    plan = plan_of(FleetConfig(), cores=3)
    assert plan.engines[0].cores == (0,)
    assert plan.engines[0].front_cores == (1, 2)
    assert plan.gateway.process.affinity == (1, 2)


def test_without_spare_cores_engines_stay_whole_and_the_gateway_runs_anywhere():
    plan = plan_of(FleetConfig(pools=(Pool(replicas=2),)), cores=2)
    assert [engine.process.affinity for engine in plan.engines] == [(0,), (1,)]
    assert [engine.front_cores for engine in plan.engines] == [(), ()]
    assert plan.gateway.process.affinity == ()


def test_a_gateway_for_every_interface_is_reached_on_this_machine():
    gateway = GatewayConfig(host="0.0.0.0", api_keys=(ApiKey(sha256="0" * 64),))  # noqa: S104
    plan = plan_of(FleetConfig(gateway=gateway))
    assert plan.gateway.url == "http://127.0.0.1:8080"
    assert plan.keys_needed


def test_a_plan_reads_back_as_it_was_written():
    plan = plan_of(FleetConfig())
    assert FleetPlan.model_validate_json(plan.model_dump_json()) == plan


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.name)
def test_examples_can_be_planned_on_two_cores(example, monkeypatch):
    monkeypatch.setattr(embedding_folder, "is_whole", lambda alias, home: True)
    assert plan_of(load_fleet(example)).engines
