"""The command of one engine: bound to this machine, reporting its phases, with its levers, on its cores."""

import sys

import pytest

from phasewise.core.errors import ConfigError
from phasewise.fleet.config import Levers, Pool
from phasewise.fleet.engines.command import engine_command, llama_cpp_command
from phasewise.fleet.engines.known_models import ServedModel
from phasewise.fleet.local.placement import EnginePlace
from tests.fleet.builders import make_engine

FOLDER = ServedModel("smollm2-135m", "/models/smollm2-135m", is_folder=True)
HUB = ServedModel("org/name", "org/name", is_folder=False)


def command(pool=None, engine=None, model=FOLDER, cores=(0,), spare_cores=(), gpus=()):
    place = EnginePlace("main-0", pool or Pool(), 8100, cores, spare_cores, gpus)
    return engine_command(place, engine or make_engine(), model)


def value_of(argv, flag):
    """The value that argparse would take: the last."""
    last = len(argv) - 1 - argv[::-1].index(flag)
    return argv[last + 1]


def test_engine_listens_on_loopback_whatever_stands_before():
    argv = command().argv
    assert argv[-4:] == ("--host", "127.0.0.1", "--port", "8100")
    assert value_of(argv, "--served-model-name") == "smollm2-135m"
    assert argv[argv.index("serve") + 1] == "/models/smollm2-135m"


@pytest.mark.parametrize("engine", [make_engine(), make_engine(plugin_version=None), make_engine("cuda")])
def test_engine_reports_its_phases(engine):
    argv = command(engine=engine).argv
    assert {"--enable-per-request-metrics", "--enable-prompt-tokens-details"} <= set(argv)


def test_steps_are_asked_for_only_where_the_recorder_is_installed():
    with_recorder, without = command(), command(engine=make_engine(plugin_version=None))
    assert "--enable-logging-iteration-details" in with_recorder.argv
    assert with_recorder.env["PHASEWISE_STEPS_ADDR"] == "127.0.0.1:18100"
    assert "--enable-logging-iteration-details" not in without.argv
    assert "PHASEWISE_STEPS_ADDR" not in without.env


def test_only_a_recorder_on_a_cpu_is_asked_to_fix_the_engine():
    assert command().env["PHASEWISE_FIXES"] == "on"
    for engine in (make_engine("cuda"), make_engine(plugin_version=None)):
        assert "PHASEWISE_FIXES" not in command(engine=engine).env


def test_model_hub_is_left_alone_only_for_a_folder():
    assert command().env["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in command(model=HUB).env


def test_on_cores_the_engine_runs_eagerly_in_few_threads_with_a_bounded_kv_cache():
    made = command(cores=(2, 3))
    assert "--enforce-eager" in made.argv
    assert value_of(made.argv, "--kv-cache-memory-bytes") == str(2**30)
    assert made.env["OMP_NUM_THREADS"] == made.env["NUMBA_NUM_THREADS"] == "2"
    assert made.env["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert "CUDA_VISIBLE_DEVICES" not in made.env


def test_kv_cache_memory_lever_replaces_the_default():
    made = command(Pool(levers=Levers(kv_cache_memory_bytes="512MiB")))
    assert made.argv.count("--kv-cache-memory-bytes") == 1
    assert value_of(made.argv, "--kv-cache-memory-bytes") == str(2**29)


def test_engine_may_start_on_its_own_and_the_spare_cores():
    assert command(cores=(0,), spare_cores=(1, 2)).affinity == (0, 1, 2)
    assert command(cores=(1,)).affinity == (1,)


def test_on_gpus_nothing_is_said_about_cores():
    made = command(engine=make_engine("cuda"), cores=(), gpus=(1, 2))
    assert made.env["CUDA_VISIBLE_DEVICES"] == "1,2"
    assert value_of(made.argv, "--tensor-parallel-size") == "2"
    assert "--enforce-eager" not in made.argv
    assert made.affinity == ()


def test_own_flags_come_after_ours():
    argv = command(Pool(engine_flags=("--no-enforce-eager",))).argv
    assert argv.index("--no-enforce-eager") > argv.index("--enforce-eager")


@pytest.mark.parametrize("flag", ["--host", "--host=0.0.0.0", "--port=1", "--served-model-name"])
def test_flags_that_would_move_an_engine_are_rejected(flag):
    with pytest.raises(ConfigError, match=r"pools\.main\.engine_flags"):
        command(Pool(engine_flags=(flag, "x")))


@pytest.mark.parametrize(("version", "guarded"), [("0.3.0", True), ("0.2.9", False), (None, False)])
def test_the_plugin_guards_an_engine_if_it_can(version, guarded):
    argv = command(engine=make_engine(plugin_version=version)).argv
    assert ("--middleware" in argv) is guarded


def llama_argv(pool, cores=(0,)):
    model = ServedModel("m", "/models/m.gguf", is_folder=False, gguf="/models/m.gguf")
    return llama_cpp_command(EnginePlace("main-0", pool, 8100, cores, (1, 2)), model).argv


def test_llama_cpp_runs_in_this_python_with_its_endpoints_on():
    argv = llama_argv(Pool(engine="llama.cpp"), cores=(0, 3))
    assert argv[:4] == (sys.executable, "-m", "phasewise.fleet.engines.llama_server", "/models/m.gguf")
    assert {"--metrics", "--slots"} <= set(argv)
    assert value_of(argv, "-t") == "2"
    assert value_of(argv, "-np") == "4"
    assert argv[-6:] == ("--alias", "m", "--host", "127.0.0.1", "--port", "8100")


def test_levers_become_llama_cpps_flags():
    levers = Levers(max_num_seqs=3, max_num_batched_tokens=64, prefix_cache=False, max_model_len=1000)
    argv = llama_argv(Pool(engine="llama.cpp", levers=levers, engine_flags=("--cache-reuse", "8")))
    assert (value_of(argv, "-np"), value_of(argv, "-ub")) == ("3", "64")
    # Its context is that of all slots.
    assert value_of(argv, "-c") == "3000"
    assert "--no-cache-prompt" in argv
    assert value_of(argv, "--cache-reuse") == "8"


def test_llama_cpp_stays_on_its_own_cores_and_reads_its_own_key():
    place = EnginePlace("main-0", Pool(engine="llama.cpp"), 8100, (1,), (0, 2))
    made = llama_cpp_command(place, ServedModel("m", "m.gguf", is_folder=False, gguf="m.gguf"))
    assert (made.affinity, made.key_variable, made.records_steps) == ((1,), "LLAMA_API_KEY", False)


@pytest.mark.parametrize("flag", ["--host", "--port=1", "--alias", "-a"])
def test_flags_that_would_move_llama_cpp_are_rejected(flag):
    with pytest.raises(ConfigError, match=r"pools\.main\.engine_flags"):
        llama_argv(Pool(engine="llama.cpp", engine_flags=(flag, "x")))
