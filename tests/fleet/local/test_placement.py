"""Engines get ports in the file's order and cores of their own, or nothing is started."""

import pytest

from phasewise.core.errors import ConfigError
from phasewise.fleet.config import FleetConfig, GatewayConfig, Pool
from phasewise.fleet.local.placement import Machine, place_engines


def cpus(count):
    return Machine("cpu", tuple(range(count)))


def fleet_of(*pools, **rest):
    return FleetConfig(pools=pools, **rest)


def test_ports_and_names_follow_the_file():
    places = place_engines(fleet_of(Pool(name="a", replicas=2), Pool(name="b")), cpus(4))
    assert [(place.name, place.port, place.steps_port) for place in places] == [
        ("a-0", 8100, 18100),
        ("a-1", 8101, 18101),
        ("b-0", 8102, 18102),
    ]


def test_engines_share_no_core_and_know_the_spare_ones():
    places = place_engines(fleet_of(Pool(name="a", cores=2), Pool(name="b")), Machine("cpu", (1, 3, 5, 7)))
    assert [place.cores for place in places] == [(1, 3), (5,)]
    assert {place.spare_cores for place in places} == {(7,)}


def test_with_as_many_engines_as_cores_none_is_spare():
    places = place_engines(fleet_of(Pool(replicas=2)), cpus(2))
    assert [(place.cores, place.spare_cores) for place in places] == [((0,), ()), ((1,), ())]


def test_more_cores_than_there_are_is_an_error_that_names_the_keys():
    with pytest.raises(ConfigError, match="this machine has 2") as raised:
        place_engines(fleet_of(Pool(replicas=3)), cpus(2))
    assert "pools.main.replicas" in raised.value.hint


def test_gpus_are_given_out_like_cores():
    machine = Machine("cuda", (0, 1), (0, 1, 2))
    places = place_engines(fleet_of(Pool(name="a", gpus=2), Pool(name="b")), machine)
    assert [(place.gpus, place.cores) for place in places] == [((0, 1), ()), ((2,), ())]


@pytest.mark.parametrize(
    ("pool", "machine", "words"),
    [
        (Pool(gpus=1), cpus(2), "built for the CPU"),
        (Pool(cores=1), Machine("cuda", (0,), (0,)), "built for cuda"),
        (Pool(), Machine("cuda", (0,), ()), "more gpus than there are"),
    ],
)
def test_device_the_engine_is_not_built_for_is_rejected(pool, machine, words):
    with pytest.raises(ConfigError, match=words):
        place_engines(fleet_of(pool), machine)


def test_ports_off_the_scale_are_rejected():
    with pytest.raises(ConfigError, match="step recorder would need port 65536"):
        place_engines(FleetConfig(first_engine_port=55536), cpus(1))


def test_side_channels_off_the_scale_are_rejected():
    pools = (Pool(name="p", role="prefill"), Pool(name="d", role="decode"))
    place_engines(fleet_of(*pools, first_engine_port=45534), cpus(2))
    with pytest.raises(ConfigError, match="KV side channel would need port 65536") as raised:
        place_engines(fleet_of(*pools, first_engine_port=45535), cpus(2))
    assert "below 45535" in raised.value.hint


def test_only_engines_that_kv_transfer_have_a_side_channel():
    pools = (Pool(name="p", role="prefill"), Pool(name="d", role="decode"), Pool(name="m"))
    assert [place.side_port for place in place_engines(fleet_of(*pools), cpus(3))] == [28100, 28101, None]


def test_gateway_on_an_engines_port_is_rejected():
    with pytest.raises(ConfigError, match=r"gateway\.port 8100"):
        place_engines(FleetConfig(gateway=GatewayConfig(port=8100)), cpus(1))
