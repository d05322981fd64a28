"""The launcher of llama.cpp takes llama-server's own flags, rejects others in words, and ends on a signal."""

import re
import tomllib
from types import SimpleNamespace

import pytest

from phasewise.fleet.engines.llama_server import apply, parsed
from tests.paths import ROOT


@pytest.fixture
def gguf(tmp_path):
    file = tmp_path / "model.gguf"
    file.touch()
    return str(file)


def params_for(gguf, *words, api_key=None):
    """What llama.cpp's parameters are set to; one that is not set is missing."""
    draft = SimpleNamespace(mparams=SimpleNamespace())
    params = SimpleNamespace(
        model=SimpleNamespace(),
        cpuparams=SimpleNamespace(),
        speculative=SimpleNamespace(draft=draft, types=()),
    )
    apply(parsed([gguf, *words]), params, api_key)
    return params


def test_every_flag_sets_the_parameter_that_llama_server_sets(gguf):
    words = "-np 2 -c 4096 -b 256 -ub 128 -t 3 --cache-reuse 64 --draft-max 5 --port 1 --host ::1 --alias m"
    params = params_for(gguf, *words.split(), "-md", gguf, "--metrics", "--no-slots", "--no-cache-prompt")
    assert params.model.path == gguf
    assert (params.n_parallel, params.n_ctx, params.n_batch, params.n_ubatch) == (2, 4096, 256, 128)
    assert (params.cpuparams.n_threads, params.n_cache_reuse, params.port) == (3, 64, 1)
    assert (params.hostnames, params.model_alias) == (["::1"], {"m"})
    assert (params.endpoint_metrics, params.endpoint_slots, params.cache_prompt) == (True, False, False)
    assert (params.speculative.draft.n_max, params.speculative.draft.mparams.path) == (5, gguf)


def test_long_names_set_the_same(gguf):
    words = "--parallel 2 --ctx-size 9 --batch-size 8 --ubatch-size 7 --threads 6 --cache-prompt"
    params = params_for(gguf, *words.split())
    assert (params.n_parallel, params.n_ctx, params.n_batch, params.n_ubatch) == (2, 9, 8, 7)
    assert (params.cpuparams.n_threads, params.cache_prompt) == (6, True)


def test_what_is_not_given_keeps_the_engines_default(gguf):
    params = params_for(gguf)
    assert not any(hasattr(params, name) for name in ("n_parallel", "n_ctx", "api_keys", "hostnames"))


def test_no_web_page_may_call_it(gguf):
    params = params_for(gguf)
    assert (params.cors_origins, params.ui) == ("", False)


def test_a_key_is_asked_for_if_there_is_one(gguf):
    assert params_for(gguf, api_key="secret").api_keys == ["secret"]


@pytest.mark.parametrize("words", [["--no-such-flag"], ["--paral", "2"], ["-np", "many"]])
def test_an_unknown_flag_is_an_error_in_words(gguf, words, capsys):
    with pytest.raises(SystemExit) as ended:
        parsed([gguf, *words])
    assert ended.value.code == 2
    assert words[0] in capsys.readouterr().err.splitlines()[-1]


def test_a_model_that_is_not_there_is_an_error_in_words(capsys):
    with pytest.raises(SystemExit):
        parsed(["/no/such/model.gguf"])
    assert "there is no file /no/such/model.gguf" in capsys.readouterr().err


def test_the_hashed_package_is_the_one_that_the_extra_names():
    lock = (ROOT / "src/phasewise/fleet/engines/llama-lock.txt").read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (named,) = extras["demo"]
    assert f"\n{named} \\\n" in lock
    assert len(re.findall(r"--hash=sha256:[0-9a-f]{64}", lock)) >= 2
