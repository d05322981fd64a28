"""The chart on a real one-node Kubernetes: installed, asked, upgraded under load, removed."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
import yaml

from tests.deploy.chart import CHART, EXAMPLES, render, values_of
from tests.deploy.one_node import running_node
from tests.deploy.podman import GATEWAY, podman_with_base_image

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        not os.environ.get("PHASEWISE_K8S_NODE"),
        reason="two minutes on a whole node: by hand, with PHASEWISE_K8S_NODE=1",
    ),
]

NAMESPACE = "demo"
KEY = "a-key-of-this-test"
STREAMS = 4
STREAM_TOKENS = 200
"""About 12 s."""
WITHIN_S = 90.0


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """A node that has the gateway's image."""
    with running_node() as node:
        podman, tar = podman_with_base_image(), tmp_path_factory.mktemp("image") / "gateway.tar"
        podman.build("Dockerfile", GATEWAY)
        podman("save", "--output", str(tar), GATEWAY)
        node.load(tar)
        tar.unlink()
        yield node


@pytest.fixture(scope="module")
def address(node, tmp_path_factory):
    """Two gateways in front of two fake engines, at their Service."""
    own = tmp_path_factory.mktemp("values") / "own.yaml"
    repository, _, tag = GATEWAY.partition(":")
    values = {
        "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"},
        "gateway": {"apiKeys": [{"sha256": hashlib.sha256(KEY.encode()).hexdigest()}]},
    }
    own.write_text(yaml.safe_dump(values))
    files = ["--values", str(values_of("fake-engines")), "--values", str(own)]
    node.kubectl("create", "namespace", NAMESPACE)
    secrets = ["--from-literal=salt-secret=" + "s" * 32, "--from-literal=engine-key=k"]
    node.kubectl(*where(), "create", "secret", "generic", "phasewise-secrets", *secrets)
    node.helm("install", "phasewise", str(CHART), *where(), *files, *waiting())
    service = node.get(NAMESPACE, "service", "phasewise-gateway")["spec"]
    return f"http://{service['clusterIP']}:{service['ports'][0]['port']}"


def where():
    return ["--namespace", NAMESPACE]


def waiting():
    return ["--wait", "--timeout", f"{WITHIN_S:.0f}s"]


def chat(address, key=KEY, **fields):
    """The reply to a chat, open for reading."""
    body = {"model": "fake-model", "messages": [{"role": "user", "content": "hello"}], **fields}
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    request = urllib.request.Request(
        f"{address}/v1/chat/completions", json.dumps(body).encode(), headers=headers
    )
    return urllib.request.urlopen(request, timeout=WITHIN_S)


def status_of(url):
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return reply.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def gateways(node):
    return node.get(NAMESPACE, "pods", "--selector=app.kubernetes.io/component=gateway")["items"]


def wait_for(condition):
    deadline_s = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.5)


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_api_server_accepts_every_manifest(node, example):
    documents = [it for it in yaml.safe_load_all(render("--values", str(values_of(example)))) if it]
    accepted = node.kubectl(
        "apply", "--namespace=default", "--dry-run=server", "--validate=strict", "--filename=-",
        stdin=yaml.safe_dump_all(documents),
    )  # fmt: skip
    assert accepted.count("(server dry run)") == len(documents)


def test_a_chat_through_the_service_is_answered(node, address):
    with chat(address, max_tokens=4, ignore_eos=True) as reply:
        assert json.load(reply)["usage"]["completion_tokens"] == 4
    with pytest.raises(urllib.error.HTTPError, match="401") as rejected:
        chat(address, key="another-key")
    rejected.value.close()
    assert len(gateways(node)) == 2


def test_an_upgrade_cuts_no_stream(node, address):
    """Streams begin before, during and after it, each longer than a pod waits before it is stopped."""
    over = threading.Event()

    def keep_streaming():
        endings = []
        while not over.is_set():
            with chat(address, max_tokens=STREAM_TOKENS, ignore_eos=True, stream=True) as reply:
                events = [event for event in reply.read().decode().split("\n\n") if event]
            endings.append((sum('"content"' in it for it in events) >= STREAM_TOKENS, events[-1]))
        return endings

    before = {pod["metadata"]["name"] for pod in gateways(node)}
    with ThreadPoolExecutor(STREAMS) as clients:
        try:
            streaming = [clients.submit(keep_streaming) for _ in range(STREAMS)]
            time.sleep(1.0)
            changed = ["--reuse-values", "--set", "gateway.processes=2"]
            node.helm("upgrade", "phasewise", str(CHART), *where(), *changed, *waiting())
            wait_for(lambda: before.isdisjoint(pod["metadata"]["name"] for pod in gateways(node)))
        finally:
            over.set()
    assert {ending for client in streaming for ending in client.result()} == {(True, "data: [DONE]")}


def test_gateways_without_engines_are_not_ready_and_are_not_restarted(node, address):
    engines = ["--namespace", NAMESPACE, "scale", "statefulset/phasewise-fake"]
    node.kubectl(*engines, "--replicas=0")
    wait_for(lambda: not any(is_ready(pod) for pod in gateways(node)))
    for pod in gateways(node):
        pod_address = f"http://{pod['status']['podIP']}:8080"
        assert status_of(f"{pod_address}/health") == 503
        assert status_of(f"{pod_address}/openapi.json") == 200
        assert pod["status"]["containerStatuses"][0]["restartCount"] == 0
    node.kubectl(*engines, "--replicas=2")
    wait_for(lambda: all(is_ready(pod) for pod in gateways(node)))


def is_ready(pod):
    return any(it["type"] == "Ready" and it["status"] == "True" for it in pod["status"]["conditions"])


def test_an_uninstall_leaves_nothing(node, address):
    node.helm("uninstall", "phasewise", *where(), *waiting())
    kinds = "pods,services,deployments,statefulsets,secrets,poddisruptionbudgets,networkpolicies"
    of_the_chart = "--selector=app.kubernetes.io/name=phasewise"
    wait_for(lambda: node.get(NAMESPACE, kinds, of_the_chart)["items"] == [])
