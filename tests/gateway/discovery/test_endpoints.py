"""Which engines the objects of a cluster name."""

from __future__ import annotations

import pytest

from phasewise.core.errors import ConfigError
from phasewise.core.worker import Role
from phasewise.fleet.config import DiscoverConfig
from phasewise.gateway.discovery.endpoints import (
    pool_selector,
    problem_of_pool,
    problem_of_service,
    workers_in_pods,
    workers_in_slices,
)

SERVICE = DiscoverConfig(service="engines")
POOL = DiscoverConfig(inference_pool="engines")


def endpoint(address, pod=None, **conditions):
    target = {} if pod is None else {"targetRef": {"kind": "Pod", "name": pod}}
    return {"addresses": [address], "conditions": conditions, **target}


def a_slice(*endpoints, ports=(("http", 8000),), **labels):
    given = [{"name": name, "port": number} for name, number in ports]
    return {"metadata": {"name": "s", "labels": labels}, "endpoints": list(endpoints), "ports": given}


def pod(name, address="10.0.0.1", ready="True", **metadata):
    status = {"podIP": address, "conditions": [{"type": "Ready", "status": ready}]}
    return {"metadata": {"name": name, **metadata}, "status": status}


def names(workers):
    return [it.name for it in workers]


def test_ready_endpoints_are_workers_by_the_names_of_their_pods():
    found = workers_in_slices(
        [a_slice(endpoint("10.0.0.2", "b", ready=True), endpoint("10.0.0.1", "a"))], SERVICE
    )
    assert [(it.name, it.url, it.model) for it in found] == [
        ("a", "http://10.0.0.1:8000", ""),
        ("b", "http://10.0.0.2:8000", ""),
    ]


@pytest.mark.parametrize("conditions", [{"ready": False}, {"ready": True, "terminating": True}])
def test_an_endpoint_that_is_not_ready_or_ends_gets_no_new_request(conditions):
    assert workers_in_slices([a_slice(endpoint("10.0.0.1", "a", **conditions))], SERVICE) == []


def test_an_endpoint_in_two_slices_is_one_worker():
    twice = [a_slice(endpoint("10.0.0.1", "a")), a_slice(endpoint("10.0.0.1", "a"))]
    assert names(workers_in_slices(twice, SERVICE)) == ["a"]


def test_addresses_without_a_pod_and_of_ipv6():
    found = workers_in_slices([a_slice(endpoint("fd00::1"))], SERVICE)
    assert [(it.name, it.url) for it in found] == [("engine-fd00--1", "http://[fd00::1]:8000")]


@pytest.mark.parametrize(("wanted", "number"), [("http", 8000), (8000, 8000), ("metrics", 9000)])
def test_of_several_ports_the_one_that_is_asked_for(wanted, number):
    ports = (("http", 8000), ("metrics", 9000))
    found = workers_in_slices(
        [a_slice(endpoint("10.0.0.1"), ports=ports)], DiscoverConfig(service="engines", port=wanted)
    )
    assert [it.url for it in found] == [f"http://10.0.0.1:{number}"]


@pytest.mark.parametrize(
    ("labels", "role"),
    [
        ({"phasewise.dev/role": "prefill"}, Role.PREFILL),
        ({"llm-d.ai/role": "decode"}, Role.DECODE),
        ({"llm-d.ai/role": "both"}, Role.MIXED),
        ({"llm-d.ai/role": "something"}, Role.MIXED),
        ({}, Role.MIXED),
    ],
)
def test_labels_say_which_phases_an_engine_serves(labels, role):
    (by_service,) = workers_in_slices([a_slice(endpoint("10.0.0.1"), **labels)], SERVICE)
    (by_pod,) = workers_in_pods([pod("a", labels=labels)], (8000,), POOL)
    assert (by_service.role, by_pod.role) == (role, role)


def test_pods_that_are_ready_and_stay():
    pods = [
        pod("a"),
        pod("b", ready="False"),
        pod("c", deletionTimestamp="2026-01-01T00:00:00Z"),
        {"metadata": {"name": "d"}, "status": {"phase": "Pending"}},
        {"metadata": {"name": "e"}},
    ]
    assert names(workers_in_pods(pods, (8000,), POOL)) == ["a"]


def test_each_port_of_a_pool_is_an_engine():
    found = workers_in_pods([pod("a")], (8000, 8001), POOL)
    assert [(it.name, it.url) for it in found] == [
        ("a-8000", "http://10.0.0.1:8000"),
        ("a-8001", "http://10.0.0.1:8001"),
    ]


def test_the_pods_and_ports_of_a_pool():
    spec = {"selector": {"matchLabels": {"b": "2", "a": "1"}}, "targetPorts": [{"number": 8000}]}
    assert pool_selector({"metadata": {"name": "p"}, "spec": spec}) == ("a=1,b=2", (8000,))
    with pytest.raises(ConfigError, match="selects no pods"):
        pool_selector({"metadata": {"name": "p"}, "spec": {"targetPorts": [{"number": 8000}]}})


def test_the_settings_of_a_source_are_those_of_its_engines():
    source = DiscoverConfig(
        service="engines", model="m", pool="p", slots=3, weights="w", scheme="https", steps_port=18000
    )
    (found,) = workers_in_slices([a_slice(endpoint("10.0.0.1"))], source)
    assert (found.model, found.pool, found.slots, found.weights) == ("m", "p", 3, "w")
    assert (found.url, found.steps_url) == ("https://10.0.0.1:8000", "http://10.0.0.1:18000")


@pytest.mark.parametrize(
    ("slices", "source", "said"),
    [
        ([], SERVICE, "it is not in the namespace n, or it selects no pods"),
        (
            [a_slice(endpoint("10.0.0.1"), ports=(("a", 1), ("b", 2)))],
            SERVICE,
            "it has several ports: set port to one of a, b",
        ),
        (
            [a_slice(endpoint("10.0.0.1"))],
            DiscoverConfig(service="engines", port="web"),
            "it has no port web: set port to one of http",
        ),
        (
            [a_slice(endpoint("10.0.0.1", ready=False))],
            SERVICE,
            "it has endpoints, and none of them is ready: look at its pods",
        ),
        ([a_slice(endpoint("10.0.0.1"))], SERVICE, None),
    ],
)
def test_the_usual_mistakes_of_a_service_are_named(slices, source, said):
    assert problem_of_service(slices, source, "n") == said


def test_the_usual_mistakes_of_a_pool_are_named():
    assert problem_of_pool([], POOL, "app=x") == "it selects no pods: none has the labels app=x"
    unready = "it selects pods, and none of them is ready: look at them"
    assert problem_of_pool([pod("a", ready="False")], POOL, "app=x") == unready
    assert problem_of_pool([pod("a")], POOL, "app=x") is None


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"service": "a", "dns": "b"},
        {"dns": "a"},
        {"dns": "a", "port": "http"},
        {"inference_pool": "a", "port": 1},
    ],
)
def test_a_source_is_one_place_with_what_it_needs(fields):
    with pytest.raises(ValueError, match=r"give|leave out"):
        DiscoverConfig(**fields)
