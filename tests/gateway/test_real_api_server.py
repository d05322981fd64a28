"""Engines are found with a real API server: what its objects say, what it lets a gateway read, how soon."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time

import pytest

from phasewise.fleet.config import DiscoverConfig, KubernetesConfig
from phasewise.gateway.discovery import Discovery
from tests.deploy.chart import rendered
from tests.deploy.one_node import running_node
from tests.gateway.harness import eventually

pytestmark = pytest.mark.real

WITHIN_S = 2.0
NAMESPACE = "default"
MAY_READ = {
    "service": [("discovery.k8s.io", "endpointslices", ["list", "watch"])],
    "inference_pool": [
        ("inference.networking.k8s.io", "inferencepools", ["get"]),
        ("", "pods", ["list", "watch"]),
    ],
}


@pytest.fixture(scope="module")
def api(tmp_path_factory):
    with running_node("--api-only") as node:
        node.kubectl("apply", "--filename", str(node.custom_resources / "inferencepools.yaml"))
        node.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        yield node


def test_the_charts_inference_pool_is_accepted(api):
    (pool,) = (it for it in rendered("endpoint-picker").values() if it["kind"] == "InferencePool")
    api.kubectl("create", "--dry-run=server", "--validate=strict", "--filename=-", stdin=json.dumps(pool))


def account(node, folder, name, rights):
    """A service account that may read these and nothing else; what a pod of it would be given."""
    rules = [{"apiGroups": [group], "resources": [it], "verbs": verbs} for group, it, verbs in rights]
    apply(node, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}})
    rbac = "rbac.authorization.k8s.io"
    apply(node, {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": {"name": name}, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}
    role = {"apiGroup": rbac, "kind": "Role", "name": name}
    binding = {"metadata": {"name": name}, "roleRef": role, "subjects": [subject]}
    apply(node, {"apiVersion": f"{rbac}/v1", "kind": "RoleBinding", **binding})
    url, authority = node.api_server()
    token, certificate = folder / "token", folder / "ca.crt"
    token.write_text(node.kubectl("create", "token", name))
    certificate.write_bytes(authority)
    return KubernetesConfig(api=url, token_file=str(token), ca_file=str(certificate))


def apply(node, document):
    node.kubectl("apply", "--filename=-", stdin=json.dumps(document))


def put_slice(node, *endpoints):
    """The slice of the Service `engines`, as the cluster's controller would write it."""
    labels = {"kubernetes.io/service-name": "engines", "phasewise.dev/role": "decode"}
    document = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "engines-1", "labels": labels},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8000}],
        "endpoints": [
            {"addresses": [address], "conditions": conditions, "targetRef": {"kind": "Pod", "name": pod}}
            for pod, address, conditions in endpoints
        ],
    }
    apply(node, document)


def put_pod(node, name, address, *, ready):
    spec = {"containers": [{"name": "engine", "image": "none"}]}
    metadata = {"name": name, "labels": {"app": "engine", "llm-d.ai/role": "prefill"}}
    apply(node, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    status = {"status": {"podIP": address, "podIPs": [{"ip": address}], "conditions": conditions}}
    patch = ["--subresource=status", "--type=merge", "--patch", json.dumps(status)]
    node.kubectl("patch", "pod", name, *patch)


@contextlib.asynccontextmanager
async def following(source, kubernetes):
    reported = []

    async def report(workers):
        reported.append((time.monotonic(), workers))

    task = asyncio.create_task(Discovery([source], kubernetes, report).run())
    try:
        yield reported
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def changes_to(reported, names, change, *arguments):
    """The change is reported soon after the API server has it."""
    await asyncio.to_thread(change, *arguments)
    changed_s = time.monotonic()
    await eventually(lambda: reported and sorted(it.name for it in reported[-1][1]) == names)
    assert reported[-1][0] - changed_s < WITHIN_S


async def test_endpoints_of_a_service_are_followed(api, tmp_path):
    kubernetes = account(api, tmp_path, "reads-slices", MAY_READ["service"])
    put_slice(api, ("a", "10.99.0.1", {"ready": True}))
    async with following(DiscoverConfig(service="engines"), kubernetes) as reported:
        await eventually(lambda: reported)
        (first,) = reported[-1][1]
        assert (first.name, first.url, first.role.value) == ("a", "http://10.99.0.1:8000", "decode")
        ready, ending = {"ready": True}, {"ready": False, "serving": True, "terminating": True}
        both = ("a", "10.99.0.1", ready), ("b", "10.99.0.2", ready)
        await changes_to(reported, ["a", "b"], put_slice, api, *both)
        await changes_to(reported, ["b"], put_slice, api, ("a", "10.99.0.1", ending), both[1])
        gone = ["delete", "endpointslice", "engines-1"]
        await changes_to(reported, [], api.kubectl, *gone)


async def test_pods_of_an_inference_pool_are_followed(api, tmp_path):
    kubernetes = account(api, tmp_path, "reads-pods", MAY_READ["inference_pool"])
    spec = {
        "selector": {"matchLabels": {"app": "engine"}},
        "targetPorts": [{"number": 8000}],
        "endpointPickerRef": {"name": "picker", "port": {"number": 9002}},
    }
    pool = {"apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool"}
    apply(api, {**pool, "metadata": {"name": "pool"}, "spec": spec})
    put_pod(api, "c", "10.99.0.3", ready=True)
    async with following(DiscoverConfig(inference_pool="pool"), kubernetes) as reported:
        await eventually(lambda: reported)
        (first,) = reported[-1][1]
        assert (first.name, first.url, first.role.value) == ("c", "http://10.99.0.3:8000", "prefill")
        await changes_to(reported, ["c", "d"], lambda: put_pod(api, "d", "10.99.0.4", ready=True))
        await changes_to(reported, ["d"], lambda: put_pod(api, "c", "10.99.0.3", ready=False))
        remove = ["delete", "pod", "d", "--force", "--grace-period=0"]
        await changes_to(reported, [], api.kubectl, *remove)


async def test_who_may_not_read_is_given_the_reason(api, tmp_path, caplog):
    kubernetes = account(api, tmp_path, "reads-nothing", [])
    async with following(DiscoverConfig(service="engines"), kubernetes):
        await eventually(lambda: "does not let it read: default/endpointslices" in caplog.text)
    (tmp_path / "token").write_text("not a token")
    async with following(DiscoverConfig(service="engines"), kubernetes):
        await eventually(lambda: "does not know this service account" in caplog.text)


async def test_a_pool_and_a_service_that_are_not_there_are_named(api, tmp_path, caplog):
    rights = [*MAY_READ["service"], *MAY_READ["inference_pool"]]
    kubernetes = account(api, tmp_path, "reads-all", rights)
    async with following(DiscoverConfig(inference_pool="other"), kubernetes):
        await eventually(lambda: "the cluster has no default/inferencepools/other" in caplog.text)
    async with following(DiscoverConfig(service="other"), kubernetes):
        await eventually(lambda: "it is not in the namespace default, or it selects no pods" in caplog.text)


def test_the_chart_gives_gateways_the_rights_that_they_need():
    (rule,) = rendered("mixed")["Role", "phasewise-gateway"]["rules"]
    assert [(rule["apiGroups"][0], rule["resources"][0], rule["verbs"])] == MAY_READ["service"]
