"""The images are built and run: as nobody in particular, on a root file system that cannot be written."""

from __future__ import annotations

import json
import os
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.deploy.podman import BASE, GATEWAY, podman_with_base_image

pytestmark = pytest.mark.real

MOST_ABOVE_BASE_MB = 120
READY_WITHIN_S = 60.0
LOCKED_DOWN = ("--read-only", "--tmpfs=/tmp", "--cap-drop=all", "--security-opt=no-new-privileges")
FAKE_ENGINE = ("engine", "fake", "--port", "9100", "--preset", "fast")
GATEWAY_FILE = """
gateway: {port: 8080, processes: 2}
workers: [{name: engine-0, url: "http://127.0.0.1:9100", model: fake-model}]
"""
ASK_HEALTH = (
    "import urllib.request as ask; print(ask.urlopen('http://127.0.0.1:8080/health').read().decode())"
)
PLUGINS = """
from importlib.metadata import entry_points
print(*(it.value for name in ("stat_logger", "general") for it in entry_points(group=f"vllm.{name}_plugins")))
import phasewise_engine_plugin.guard
"""


@pytest.fixture(scope="module")
def podman():
    return podman_with_base_image()


@pytest.fixture(scope="module")
def image(podman):
    podman.build("Dockerfile", GATEWAY)
    return podman.inspect(GATEWAY)


@contextmanager
def running(podman, name, *arguments):
    """A container until the block is left."""
    podman("run", "--detach", "--name", name, *LOCKED_DOWN, *arguments)
    try:
        yield name
    finally:
        podman("rm", "--force", "--time=1", name)


@pytest.fixture(scope="module")
def gateway(podman, image, tmp_path_factory):
    """A gateway in front of a fake engine, in a network of their own without a way out."""
    file = Path(tmp_path_factory.mktemp("gateway") / "gateway.yaml")
    file.write_text(GATEWAY_FILE)
    mounted = f"--volume={file}:/etc/phasewise/gateway.yaml:ro"
    engine, name = (f"{what}-{os.getpid()}" for what in ("engine", "gateway"))
    with (
        running(podman, engine, "--network=none", "--entrypoint=phasewise", GATEWAY, *FAKE_ENGINE),
        running(podman, name, f"--network=container:{engine}", mounted, GATEWAY),
    ):
        wait_until_healthy(podman, name)
        yield name


def wait_until_healthy(podman, name):
    deadline_s = time.monotonic() + READY_WITHIN_S
    while podman("healthcheck", "run", name, check=False) == "unhealthy":
        assert time.monotonic() < deadline_s, podman("logs", name)
        time.sleep(0.5)


def test_it_adds_little_to_its_base(podman, image):
    added_mb = podman.size_mb(GATEWAY) - podman.size_mb(BASE)
    assert added_mb < MOST_ABOVE_BASE_MB


def test_it_serves_as_nobody_in_particular_on_a_read_only_root(podman, gateway):
    assert json.loads(podman("exec", gateway, "python", "-c", ASK_HEALTH))["workers_up"] == 1
    assert podman("exec", gateway, "id", "-u") == "10001"
    assert podman("exec", gateway, "sh", "-c", "touch /etc/x 2>/dev/null || echo rejected") == "rejected"
    assert "engine-0" in podman("exec", gateway, "phasewise", "status")


def test_stopping_it_is_clean(podman, gateway):
    podman("stop", "--time=30", gateway)
    assert podman("inspect", gateway, "--format", "{{.State.ExitCode}}") == "0"


def test_vllm_finds_the_plugin_that_its_layer_adds(podman):
    """On a plain Python instead of vLLM's image, which has 10 GB."""
    tag = "localhost/phasewise-vllm:local"
    podman.build("Dockerfile.vllm", tag, VLLM=BASE)
    found = podman("run", "--rm", "--network=none", *LOCKED_DOWN, tag, "python", "-c", PLUGINS)
    assert found == "phasewise_engine_plugin.recorder:StepRecorder phasewise_engine_plugin.fixes:apply"
