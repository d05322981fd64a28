"""The chart renders what Kubernetes accepts and the gateway reads, and rejects values that cannot work."""

from __future__ import annotations

import json
from functools import cache

import pytest
import yaml
from jsonschema import Draft202012Validator

from phasewise.core.worker import Role
from phasewise.fleet.config import Pool, load_gateway_file
from phasewise.fleet.engines.command import connector_arguments
from tests.deploy.chart import EXAMPLES, MANIFESTS, ChartRejected, manifest, render, rendered, values_of
from tests.deploy.kubernetes_tools import kubernetes_tools

INFERENCE_POOL = "inference.networking.k8s.io/v1"  # tried in tests/gateway/test_real_api_server.py
A_KEY = f"gateway.apiKeys[0].sha256={'0' * 64}"
AN_ENGINE = "engines.external[0].name=a,engines.external[0].url=http://a:8000,engines.external[0].model=m"


@cache
def schemas():
    return json.loads((kubernetes_tools() / "definitions.json").read_text())


def schema_of(document):
    """The strict schema of a kind of Kubernetes' own."""
    group, _, version = document["apiVersion"].rpartition("/")
    wanted = {"group": group, "version": version, "kind": document["kind"]}
    (name,) = (
        name
        for name, it in schemas()["$defs"].items()
        if wanted in it.get("x-kubernetes-group-version-kind", ())
    )
    return schemas() | {"$ref": f"#/$defs/{name}"}


def faults(document):
    found = Draft202012Validator(schema_of(document)).iter_errors(document)
    return [f"{document['kind']} {list(it.absolute_path)}: {it.message}" for it in found]


def gateway_pod(example):
    return rendered(example)["Deployment", "phasewise-gateway"]["spec"]["template"]["spec"]


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_manifests_are_what_the_chart_renders(example):
    """Fixed by: python -m tests.deploy.chart"""
    assert (MANIFESTS / f"{example}.yaml").read_text() == manifest(example)


@pytest.mark.parametrize("example", EXAMPLES)
def test_kubernetes_knows_every_field(example):
    documents = [it for it in rendered(example).values() if it["apiVersion"] != INFERENCE_POOL]
    assert len(documents) >= 6
    assert [fault for it in documents for fault in faults(it)] == []


def test_a_field_that_kubernetes_does_not_know_is_found():
    pod = gateway_pod("mixed")
    pod["containers"][0]["imagePolicy"] = "Always"
    assert faults({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": pod})


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_gateway_accepts_its_file(example, tmp_path):
    file = tmp_path / "gateway.yaml"
    file.write_text(rendered(example)["Secret", "phasewise-gateway"]["stringData"]["gateway.yaml"])
    read = load_gateway_file(file)
    assert read.gateway.reload_on_change
    assert {source.model for source in read.discover} <= {"fake-model", "Qwen/Qwen3-8B"}


def file_of(objects):
    return yaml.safe_load(objects["Secret", "phasewise-gateway"]["stringData"]["gateway.yaml"])


def test_engines_are_found_by_the_service_of_their_pool():
    objects = rendered("disaggregated")
    for source, pool in zip(file_of(objects)["discover"], ("prefill", "decode"), strict=True):
        service = objects["Service", source["service"]]["spec"]
        pods = objects["StatefulSet", f"phasewise-{pool}"]["spec"]["template"]
        assert service["selector"].items() <= pods["metadata"]["labels"].items()
        assert source["port"] in [port["name"] for port in service["ports"]]
        assert source["role"] == pool


def test_gateways_may_read_endpoint_slices_and_nothing_else():
    objects = rendered("mixed")
    assert objects["Role", "phasewise-gateway"]["rules"] == [
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]}
    ]
    assert gateway_pod("mixed")["serviceAccountName"] == "phasewise-gateway"


def test_with_dns_gateways_have_no_access_to_the_api_server():
    objects = rendered("mixed", "--set", "engines.discovery=dns")
    assert not {"Role", "ServiceAccount", "RoleBinding"} & {kind for kind, _ in objects}
    pod = objects["Deployment", "phasewise-gateway"]["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert [it["dns"] for it in file_of(objects)["discover"]] == ["phasewise-main.phasewise.svc"]


def test_a_pool_that_is_scaled_has_no_number_of_replicas():
    scaled = rendered("mixed", "--set", "engines.pools[0].autoscaled=true")
    assert "replicas" not in scaled["StatefulSet", "phasewise-main"]["spec"]


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
def test_engines_transfer_kv_as_those_of_phasewise_up_do(role):
    engine = rendered("disaggregated")["StatefulSet", f"phasewise-{role}"]["spec"]["template"]["spec"]
    (given,) = [it for it in engine["containers"][0]["args"] if it.startswith("--kv-transfer-config=")]
    _flag, ours = connector_arguments(Pool(role=role), on_cpu=False, lease_s=30)
    assert json.loads(given.partition("=")[2]) == json.loads(ours)


def test_gateway_pods_can_write_nothing_but_tmp():
    pod = gateway_pod("mixed")
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"] == {
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    writable = [it["mountPath"] for it in container["volumeMounts"] if not it.get("readOnly")]
    assert writable == ["/tmp"]


def test_open_streams_finish_before_a_gateway_is_killed():
    pod = gateway_pod("mixed")
    (container,) = pod["containers"]
    wait_s = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] > wait_s + 120


def test_only_readiness_depends_on_engines():
    (container,) = gateway_pod("mixed")["containers"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/health"
    assert container["livenessProbe"]["httpGet"]["path"] == "/openapi.json"


@pytest.mark.parametrize(("example", "exchange_kv"), [("mixed", False), ("disaggregated", True)])
def test_only_gateways_reach_engines(example, exchange_kv):
    objects = rendered(example)
    policy = objects["NetworkPolicy", "phasewise-engines"]["spec"]
    gateways = objects["Deployment", "phasewise-gateway"]["spec"]["template"]["metadata"]["labels"]
    from_gateways, *others = policy["ingress"]
    assert from_gateways["from"] == [{"podSelector": {"matchLabels": gateways}}]
    assert others == ([{"from": [{"podSelector": policy["podSelector"]}]}] if exchange_kv else [])
    for (kind, _), it in objects.items():
        if kind == "StatefulSet":
            engine = it["spec"]["template"]["metadata"]["labels"]
            assert policy["podSelector"]["matchLabels"].items() <= engine.items()


def test_envoy_alone_reaches_the_endpoint_picker_and_it_reaches_engines():
    objects = rendered("endpoint-picker")
    (container,) = gateway_pod("endpoint-picker")["containers"]
    assert container["args"][1:] == ["--endpoint-picker", "--picker-port=9002"]
    ports = {it["name"]: it["containerPort"] for it in container["ports"]}
    assert ports == {"http": 8080, "picker": 9002}
    envoys = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "envoy-gateway-system"}}}]
    anybody, envoy_only = objects["NetworkPolicy", "phasewise-gateway"]["spec"]["ingress"]
    assert anybody == {"ports": [{"port": "http"}]}
    assert envoy_only == {"from": envoys, "ports": [{"port": "picker"}]}
    assert objects["NetworkPolicy", "phasewise-engines"]["spec"]["ingress"][0]["from"][1:] == envoys


def test_an_inference_pool_names_the_picker_and_selects_the_engines_of_its_pool():
    objects = rendered("endpoint-picker")
    pool = objects["InferencePool", "phasewise-main"]["spec"]
    service = objects["Service", pool["endpointPickerRef"]["name"]]["spec"]
    assert pool["endpointPickerRef"]["port"]["number"] in [it["port"] for it in service["ports"]]
    engines = objects["StatefulSet", "phasewise-main"]["spec"]["template"]
    assert pool["selector"]["matchLabels"].items() <= engines["metadata"]["labels"].items()
    listens = [it["containerPort"] for it in engines["spec"]["containers"][0]["ports"]]
    assert {it["number"] for it in pool["targetPorts"]} <= set(listens)


def test_without_an_endpoint_picker_there_is_nothing_of_it():
    assert "picker" not in manifest("mixed")


def test_probes_use_tls_where_the_gateway_does():
    (container,) = gateway_pod("endpoint-picker")["containers"]
    assert container["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"
    assert container["livenessProbe"]["httpGet"]["scheme"] == "HTTPS"


def test_a_change_of_keys_replaces_no_pod_and_a_change_of_processes_does():
    def annotations(*options):
        pods = rendered("mixed", *options)["Deployment", "phasewise-gateway"]["spec"]["template"]
        return pods["metadata"]["annotations"]

    assert annotations("--set", f"gateway.apiKeys[0].sha256={'1' * 64}") == annotations()
    assert annotations("--set", "gateway.processes=2") != annotations()


def test_engines_that_run_elsewhere_need_no_pool():
    text = render("--set", f"{A_KEY},{AN_ENGINE},secretName=s")
    assert "http://a:8000" in text
    assert "StatefulSet" not in text


@pytest.mark.parametrize(
    "shared", ["gateway.replicas=1", "secretName=s", "gateway.redisUrl=redis://a:6379/0"]
)
def test_one_gateway_needs_nothing_to_share_and_several_need_one_of_two(shared):
    assert render("--set", f"{A_KEY},{AN_ENGINE},{shared}")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((AN_ENGINE,), "gateway.apiKeys is empty"),
        ((A_KEY,), "there is no engine"),
        ((A_KEY, AN_ENGINE), "gateway.redisUrl, or secretName"),
        ((A_KEY, AN_ENGINE, "gateway.replicas=1", "gateway.processes=2"), "gateway.redisUrl, or secretName"),
        ((A_KEY, AN_ENGINE, "gateway.replica=3"), "replica"),
        ((A_KEY, AN_ENGINE, "gateway.settings.host=127.0.0.1"), "host"),
        ((AN_ENGINE, "gateway.apiKeys[0].sha256=secret"), "sha256"),
        ((A_KEY, "engines.pools[0].name=gateway,engines.pools[0].model=m"), "pools"),
        ((A_KEY, "engines.pools[0].name=a"), "model"),
        ((A_KEY, AN_ENGINE, "endpointPicker.enabled=true"), "endpointPicker.clients is empty"),
        ((A_KEY, AN_ENGINE, "endpointPicker.port=8080"), "endpointPicker"),
    ],
)
def test_values_that_cannot_work_are_rejected(options, said):
    with pytest.raises(ChartRejected, match=said):
        render("--set", ",".join(options))


def test_examples_name_no_key():
    for example in EXAMPLES:
        keys = yaml.safe_load(values_of(example).read_text())["gateway"]["apiKeys"]
        assert {key["sha256"] for key in keys} == {"0" * 64}
