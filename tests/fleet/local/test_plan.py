"""A fleet file becomes commands, addresses and the gateway's file; a plan survives being written down."""

from dataclasses import replace
from pathlib import Path

import pytest

from phasewise.clients import embedding_folder
from phasewise.core.errors import ConfigError
from phasewise.core.worker import Role
from phasewise.fleet.config import ApiKey, FleetConfig, GatewayConfig, Levers, Pool, load_fleet
from phasewise.fleet.engines.known_models import ServedModel
from phasewise.fleet.local.placement import Machine
from phasewise.fleet.local.plan import FleetPlan, plan_fleet
from tests.fleet.builders import make_engine
from tests.paths import ROOT

MODEL = ServedModel("smollm2-135m", "/models/smollm2-135m", is_folder=True)


def plan_of(fleet, cores=2, home=Path("/home/x"), engine=None):
    return plan_fleet(fleet, engine or make_engine(), MODEL, Machine("cpu", tuple(range(cores))), home)


BF16_MODEL = replace(MODEL, in_bf16=True)
OLD_CPU = Machine("cpu", (0, 1), native_bf16=False)


def dtypes_of(fleet, model=BF16_MODEL, machine=OLD_CPU):
    """The dtype of each engine, set by us or by the file."""
    plan = plan_fleet(fleet, make_engine(machine.device), model, machine, Path("/home/x"))
    argvs = [engine.process.argv for engine in plan.engines]
    return plan.dtype, [argv[argv.index("--dtype") + 1] if "--dtype" in argv else None for argv in argvs]


def test_engines_compute_in_float32_where_bfloat16_is_not_native():
    assert dtypes_of(FleetConfig()) == ("float32", ["float32"])
    pair = FleetConfig(pools=(Pool(name="p", role=Role.PREFILL), Pool(name="d", role=Role.DECODE)))
    assert dtypes_of(pair) == ("float32", ["float32", "float32"])


@pytest.mark.parametrize("native", [True, None])
def test_a_processor_with_native_bfloat16_or_unknown_is_left_to_the_engine(native):
    assert dtypes_of(FleetConfig(), machine=replace(OLD_CPU, native_bf16=native)) == (None, [None])


def test_gpus_and_models_that_are_not_computed_in_bfloat16_are_left_to_the_engine():
    assert dtypes_of(FleetConfig(), model=MODEL) == (None, [None])
    assert dtypes_of(FleetConfig(), machine=Machine("cuda", (0, 1), (0,))) == (None, [None])


@pytest.mark.parametrize("flags", [("--dtype", "bfloat16"), ("--dtype", "auto"), ("--dtype", "half")])
def test_a_dtype_in_the_file_is_the_only_one(flags):
    # In one pool for all of them: the engines of a pair must not differ.
    pools = (Pool(name="a", engine_flags=flags), Pool(name="b"))
    assert dtypes_of(FleetConfig(pools=pools)) == (None, [flags[1], None])


@pytest.mark.parametrize(
    "pool",
    [
        Pool(engine_flags=("--dtype=bfloat16",)),
        Pool(engine_flags=("--quantization", "fp8")),
        Pool(engine_flags=("-q", "fp8")),
        Pool(levers=Levers(weight_quantization="fp8")),
    ],
)
def test_a_pool_that_chooses_its_numbers_is_left_alone(pool):
    assert dtypes_of(FleetConfig(pools=(pool,))) == (None, [None])


def test_gateway_file_names_every_engine():
    plan = plan_of(FleetConfig(pools=(Pool(name="a"), Pool(name="b"))))
    workers = plan.gateway_file.workers
    assert [(it.name, it.url, it.role, it.pool) for it in workers] == [
        ("a-0", "http://127.0.0.1:8100", Role.MIXED, "a"),
        ("b-0", "http://127.0.0.1:8101", Role.MIXED, "b"),
    ]
    assert workers[0].steps_url == "http://127.0.0.1:18100"
    assert {it.model for it in workers} == {"smollm2-135m"}


def test_a_gateway_that_the_fleet_could_not_watch_is_rejected():
    gateway = GatewayConfig(tls={"certificate": "c.pem", "key": "k.pem"})
    with pytest.raises(ConfigError, match=r"gateway\.tls"):
        plan_of(FleetConfig(gateway=gateway))


def test_a_semantic_cache_without_its_model_is_rejected_before_any_engine_is_started(tmp_path):
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


LLAMA = Pool(name="small", engine="llama.cpp", levers=Levers(max_num_seqs=2))


def test_a_fleet_of_llama_cpp_needs_no_vllm():
    model = replace(MODEL, gguf="/models/m.gguf")
    plan = plan_fleet(FleetConfig(pools=(LLAMA,)), None, model, Machine("cpu", (0, 1)), Path("/home/x"))
    (engine,) = plan.engines
    assert "phasewise.fleet.engines.llama_server" in engine.process.argv
    assert (engine.cores, engine.front_cores, engine.process.affinity) == ((0,), (), (0,))
    assert engine.steps_url is None
    assert list(engine.process.secrets) == ["LLAMA_API_KEY"]
    assert "TORCHINDUCTOR_CACHE_DIR" not in engine.process.env
    (worker,) = plan.gateway_file.workers
    assert (worker.slots, worker.api_key_file) == (2, engine.process.secrets["LLAMA_API_KEY"])


@pytest.mark.parametrize("machine", [Machine("cpu", (0, 1)), Machine("cuda", (0, 1), (0,))])
def test_both_kinds_of_engines_may_be_in_one_fleet(machine):
    fleet = FleetConfig(pools=(Pool(), LLAMA), engine_keys=False)
    model = replace(MODEL, gguf="/models/m.gguf")
    plan = plan_fleet(fleet, make_engine(machine.device), model, machine, Path("/home/x"))
    vllm, llama = plan.engines
    assert "vllm.entrypoints.cli.main" in vllm.process.argv
    assert "/models/m.gguf" in llama.process.argv
    assert (len(llama.cores), llama.gpus) == (1, ())
    assert {it.model for it in plan.gateway_file.workers} == {"smollm2-135m"}
    assert [it.slots for it in plan.gateway_file.workers] == [256, 2]
    assert [it.api_key_file for it in plan.gateway_file.workers] == [None, None]


def test_a_plan_reads_back_as_it_was_written():
    plan = plan_of(FleetConfig())
    assert FleetPlan.model_validate_json(plan.model_dump_json()) == plan


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.name)
def test_examples_can_be_planned_on_two_cores(example, monkeypatch):
    monkeypatch.setattr(embedding_folder, "is_whole", lambda alias, home: True)
    assert plan_of(load_fleet(example)).engines
