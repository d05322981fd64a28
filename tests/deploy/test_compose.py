"""compose.yaml is valid, its parts fit each other, and nothing in it is open to the network."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import typer
import yaml

from phasewise.cli.app import app
from phasewise.fake_engine.engine import DEFAULT_MODEL
from phasewise.fleet.config import load_gateway_file
from tests.deploy.files import DEPLOY

FILE = DEPLOY / "compose.yaml"
DURATION = re.compile(r"(\d+)s")


@pytest.fixture(scope="module")
def compose():
    return yaml.safe_load(FILE.read_text())


@pytest.fixture(scope="module")
def gateway_file():
    return load_gateway_file(DEPLOY / "gateway.yaml")


def host_of(url):
    return re.match(r"\w+://([\w.-]+):(\d+)", url).groups()


def check_against_specification(path):
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)


def test_it_is_valid_by_the_compose_specification():
    checked = check_against_specification(FILE)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_check_finds_a_mistake(tmp_path):
    wrong = tmp_path / "compose.yaml"
    wrong.write_text(FILE.read_text().replace("condition: service_healthy", "condition: service_happy"))
    assert "service_happy" in check_against_specification(wrong).stdout


def test_files_that_are_mounted_or_built_from_exist(compose):
    for service in compose["services"].values():
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            assert (DEPLOY / source).exists() if source.startswith(".") else source in compose["volumes"]
        if "build" in service:
            context = DEPLOY / service["build"]["context"]
            assert (context / service["build"]["dockerfile"]).is_file()


def test_ports_are_published_to_this_machine_only(compose):
    published = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_the_gateway_listens_where_it_is_published_scraped_and_asked_for_health(compose, gateway_file):
    service, port = compose["services"]["gateway"], gateway_file.gateway.port
    assert gateway_file.gateway.host == "0.0.0.0"  # noqa: S104 -- inside its container
    assert service["ports"] == [f"127.0.0.1:{port}:{port}"]
    scraped = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"][0]
    assert scraped["static_configs"][0]["targets"] == [f"gateway:{port}"]
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    assert f"EXPOSE {port}\n" in dockerfile
    assert f"ENV PHASEWISE_HEALTH_URL=http://127.0.0.1:{port}/health\n" in dockerfile
    mounted = service["volumes"][0].split(":")[1]
    assert f'CMD ["{mounted}"]' in dockerfile


def test_workers_of_the_example_are_the_demo_engines(compose, gateway_file):
    for worker in gateway_file.workers:
        host, port = host_of(worker.url)
        engine = compose["services"][host]
        assert engine["profiles"] == ["demo"]
        assert engine["entrypoint"][engine["entrypoint"].index("--port") + 1] == port
        assert worker.model == DEFAULT_MODEL


def test_demo_engines_are_started_with_options_that_exist(compose):
    engines = [it for it in compose["services"].values() if it.get("profiles") == ["demo"]]
    assert engines
    for engine in engines:
        program, group, command, *options = engine["entrypoint"] + engine["command"]
        assert program == "phasewise"
        engines = typer.main.get_command(app).get_command(None, group)
        engines.get_command(None, command).make_context(command, options)


def test_only_the_gateway_reaches_the_store_of_limits(compose, gateway_file):
    host, _ = host_of(gateway_file.gateway.redis.url)
    assert compose["services"][host]["networks"] == ["store"]
    assert compose["networks"]["store"]["internal"] is True
    joined = [name for name, service in compose["services"].items() if "store" in service.get("networks", [])]
    assert sorted(joined) == ["gateway", "redis"]


def test_the_example_says_how_several_gateways_share_a_secret(tmp_path):
    uncommented = (DEPLOY / "gateway.yaml").read_text().replace("# salt_secret_file:", "salt_secret_file:")
    (tmp_path / "gateway.yaml").write_text(uncommented)
    assert load_gateway_file(tmp_path / "gateway.yaml").gateway.salt_secret_file


def test_the_example_lets_nobody_in_until_a_key_is_put_there(gateway_file):
    assert [key.sha256 for key in gateway_file.gateway.api_keys] == ["0" * 64]
    assert gateway_file.gateway.admin_key_sha256 is None


def test_streams_may_finish_before_the_gateway_is_killed(compose, gateway_file):
    grace_s = int(DURATION.fullmatch(compose["services"]["gateway"]["stop_grace_period"])[1])
    assert grace_s > gateway_file.gateway.drain_s


def test_no_process_keeps_privileges_it_does_not_need(compose):
    for service in compose["services"].values():
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]


def test_images_of_others_have_a_version(compose):
    images = [it["image"] for it in compose["services"].values() if "build" not in it]
    assert all(re.search(r":v?\d", image) for image in images)


def test_grafana_finds_prometheus_and_the_dashboard_where_compose_puts_them(compose):
    provisioning = DEPLOY / "grafana" / "provisioning"
    source = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())["datasources"][0]
    assert host_of(source["url"]) == ("prometheus", "9090")
    asked = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == asked
    provider = yaml.safe_load((provisioning / "dashboards" / "phasewise.yaml").read_text())["providers"][0]
    grafana = compose["services"]["grafana"]
    assert f"./grafana/dashboards:{provider['options']['path']}:ro" in grafana["volumes"]
    home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{provider['options']['path']}/phases.json"
