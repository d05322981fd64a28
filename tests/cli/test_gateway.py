"""`phasewise gateway` asks engines what they serve and says where its keys are."""

from __future__ import annotations

import json
import stat

import pytest
from typer.testing import CliRunner

from phasewise.cli import gateway as command
from phasewise.cli.app import app
from phasewise.core.errors import ConfigError, EngineUnreachable
from phasewise.fake_engine.engine import FakeEngineConfig
from phasewise.fake_engine.fleet import running_engines
from phasewise.gateway.api.auth import key_sha256
from tests.gateway.harness import listening, running_gateway

EVERYWHERE = "0.0.0.0"  # noqa: S104 - nothing is started


async def test_an_engine_is_asked_for_its_model_and_its_recorder(monkeypatch):
    # Not 10,000 ports above the engine's own: somebody else may listen there.
    monkeypatch.setattr(command, "default_steps_url", lambda url: "http://127.0.0.1:9")
    async with running_engines(2, FakeEngineConfig(model="m1")) as engines:
        workers = await command._ask_all([engine.base_url for engine in engines])
    assert [worker.url for worker in workers] == [engine.base_url for engine in engines]
    assert [worker.model for worker in workers] == ["m1", "m1"]
    assert [worker.steps_url for worker in workers] == [None, None]


async def test_workers_are_not_named_after_their_addresses_because_anyone_may_read_the_metrics():
    async with running_engines(2) as engines:
        workers = await command._ask_all([engine.base_url for engine in engines])
        assert [worker.name for worker in workers] == ["engine-0", "engine-1"]
        async with running_gateway(workers) as gateway:
            metrics = (await gateway.fetch("GET", "/metrics")).body.decode()
    assert 'worker="engine-1"' in metrics
    assert "127.0.0.1" not in metrics


def test_the_start_reports_which_engine_has_which_name(started):
    result = CliRunner().invoke(app, ["gateway", "http://a:1"])
    assert "http://a:1: http://a:1 serves m" in result.stderr


async def test_an_address_where_nothing_listens_says_what_to_do():
    with pytest.raises(EngineUnreachable, match="start the engine first"):
        await command._ask_all(["http://127.0.0.1:9"])


async def test_an_address_that_is_no_engine_says_so():
    async with listening() as config:
        with pytest.raises(EngineUnreachable, match="list of models"):
            await command._ask_all([config.url])


def test_the_admin_key_is_made_once_and_only_its_owner_can_read_it(tmp_path):
    key, path = command._kept_admin_key(tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert command._kept_admin_key(tmp_path) == (key, path)
    assert path == tmp_path / "run" / "admin-key"


@pytest.fixture
def started(monkeypatch, tmp_path):
    """What the command would have served; nothing is started."""
    files = []
    monkeypatch.setenv("PHASEWISE_HOME", str(tmp_path))
    monkeypatch.delenv("PHASEWISE_ADMIN_KEY", raising=False)

    async def ask_all(urls):
        return [command.WorkerConfig(name=url, url=url, model="m") for url in urls]

    monkeypatch.setattr(command, "_ask_all", ask_all)
    monkeypatch.setattr(command, "serve", lambda read, _path: files.append(read()))
    return files


def test_it_reports_where_it_listens_and_where_the_admin_key_is(started, tmp_path):
    result = CliRunner().invoke(app, ["gateway", "http://a:1", "http://b:2", "--port", "8123", "--json"])
    reported = json.loads(result.stdout)
    assert reported["url"] == "http://127.0.0.1:8123/v1"
    assert reported["admin_key"] == str(tmp_path / "run" / "admin-key")
    key = (tmp_path / "run" / "admin-key").read_text().strip()
    assert key not in result.output
    (file,) = started
    assert file.gateway.admin_key_sha256 == key_sha256(key)
    assert [worker.url for worker in file.workers] == ["http://a:1", "http://b:2"]


def test_an_admin_key_from_the_environment_is_not_written_down(started, tmp_path, monkeypatch):
    monkeypatch.setenv("PHASEWISE_ADMIN_KEY", "mine")
    result = CliRunner().invoke(app, ["gateway", "http://a:1"])
    assert result.exit_code == 0
    assert "mine" not in result.output
    assert not (tmp_path / "run").exists()
    assert started[0].gateway.admin_key_sha256 == key_sha256("mine")


def test_listening_beyond_this_machine_needs_keys(started, tmp_path):
    result = CliRunner().invoke(app, ["gateway", "http://a:1", "--host", EVERYWHERE])
    assert isinstance(result.exception, ConfigError)
    assert "--api-key-file" in str(result.exception)
    keys = tmp_path / "keys"
    keys.write_text("k1\nk2\n")
    CliRunner().invoke(app, ["gateway", "http://a:1", "--host", EVERYWHERE, "--api-key-file", str(keys)])
    assert {key.sha256 for key in started[0].gateway.api_keys} == {key_sha256("k1"), key_sha256("k2")}


def test_a_key_file_without_keys_is_an_error(started, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("\n")
    result = CliRunner().invoke(app, ["gateway", "http://a:1", "--api-key-file", str(keys)])
    assert isinstance(result.exception, ConfigError)


@pytest.mark.parametrize(
    ("options", "mode", "semantic"),
    [(("--cache", "shadow"), "shadow", False), (("--cache", "serve", "--semantic"), "serve", True)],
)
def test_answers_are_kept_where_that_is_asked_for(started, options, mode, semantic):
    result = CliRunner().invoke(app, ["gateway", "http://a:1", *options])
    assert result.exit_code == 0, result.output
    cache = started[0].gateway.cache
    assert (cache.mode, cache.semantic is not None) == (mode, semantic)


def test_without_a_word_nothing_is_kept_and_meaning_needs_a_cache(started):
    CliRunner().invoke(app, ["gateway", "http://a:1"])
    assert started[0].gateway.cache is None
    result = CliRunner().invoke(app, ["gateway", "http://a:1", "--semantic"])
    assert "--cache shadow" in result.exception.hint


@pytest.fixture
def gateway_file(tmp_path):
    path = tmp_path / "gateway.yaml"
    path.write_text("gateway: {port: 8124}\nworkers: [{name: a, url: 'http://a:1', model: m}]\n")
    return str(path)


def test_a_gateways_file_is_served_as_it_is_and_makes_no_admin_key(started, gateway_file, tmp_path):
    assert CliRunner().invoke(app, ["gateway", gateway_file]).exit_code == 0
    assert (started[0].gateway.port, [worker.name for worker in started[0].workers]) == (8124, ["a"])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "said"), [(["--port", "1"], "--port was given together"), (["--semantic"], "--semantic")]
)
def test_an_option_beside_a_gateways_file_is_rejected(started, gateway_file, arguments, said):
    result = CliRunner().invoke(app, ["gateway", gateway_file, *arguments])
    assert (result.exit_code, started) == (2, [])
    assert said in result.stderr


def test_a_file_that_is_missing_ends_with_code_2(started, tmp_path):
    result = CliRunner().invoke(app, ["gateway", str(tmp_path / "none.yaml")])
    assert (result.exit_code, started) == (2, [])
    assert "none.yaml" in result.stderr


def test_an_admin_key_may_come_from_a_file_that_arguments_do_not_show(started, tmp_path):
    (tmp_path / "key").write_text("from-a-file\n")
    CliRunner().invoke(app, ["gateway", "http://a:1", "--admin-key", f"@{tmp_path / 'key'}"])
    assert started[0].gateway.admin_key_sha256 == key_sha256("from-a-file")
    result = CliRunner().invoke(app, ["gateway", "http://a:1", "--admin-key", f"@{tmp_path / 'none'}"])
    assert isinstance(result.exception, ConfigError)
