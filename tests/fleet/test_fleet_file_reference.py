"""The page about the fleet file says what the code accepts: no key too few, none too many."""

import json
import re

import pytest
import yaml

from phasewise.fleet.config import (
    ApiKey,
    CacheConfig,
    CacheRedis,
    DiscoverConfig,
    EdgeLimits,
    FleetConfig,
    GatewayConfig,
    GatewayFile,
    HttpEmbedderConfig,
    JudgeConfig,
    KubernetesConfig,
    KvTransferConfig,
    Levers,
    LogConfig,
    OnnxEmbedderConfig,
    Pool,
    QueueConfig,
    RedisConfig,
    SemanticConfig,
    SloClass,
    Speculation,
    TlsConfig,
    UpstreamConfig,
    WorkerConfig,
    WorkerTls,
)
from phasewise.fleet.engines.command import LEVER_FLAGS, RESERVED_FLAGS
from tests.paths import ROOT

PAGE = (ROOT / "docs" / "reference" / "fleet-file.md").read_text()
TABLES = [
    [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in block.splitlines()]
    for block in re.findall(r"(?:^\|.*\n)+", PAGE, flags=re.MULTILINE)
]
PARTS = (
    FleetConfig, Pool, Speculation, GatewayConfig, ApiKey, SloClass, QueueConfig, RedisConfig, TlsConfig,
    EdgeLimits, UpstreamConfig, KvTransferConfig, LogConfig, CacheConfig, CacheRedis, SemanticConfig,
    OnnxEmbedderConfig, HttpEmbedderConfig, JudgeConfig, GatewayFile, WorkerConfig, WorkerTls, DiscoverConfig,
    KubernetesConfig,
)  # fmt: skip


def rows_of(table):
    return {row[0].strip("`"): row for row in table[2:]}


@pytest.mark.parametrize("model", [*PARTS, Levers])
def test_every_key_stands_in_a_table_of_its_own(model):
    assert [set(rows_of(table)) for table in TABLES].count(set(model.model_fields)) == 1


@pytest.mark.parametrize("model", PARTS)
def test_defaults_are_those_of_the_code(model):
    table = next(table for table in TABLES if set(rows_of(table)) == set(model.model_fields))
    for key, row in rows_of(table).items():
        default = model.model_fields[key].default
        if isinstance(default, int | str) and row[2].startswith("`"):
            said = json.dumps(default) if isinstance(default, bool) else str(default)
            assert row[2].strip("`") == said, key


def test_lever_table_is_that_of_the_code():
    table = next(table for table in TABLES if table[0][0] == "lever")
    assert [(row[0].strip("`"), row[3].strip("`")) for row in table[2:]] == list(LEVER_FLAGS.items())
    phases = [("prefill", "decode", "KV", "both").index(row[1]) for row in table[2:]]
    assert phases == sorted(phases)


def test_example_on_the_page_is_a_fleet():
    example = re.search(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
    assert FleetConfig.model_validate(yaml.safe_load(example[1])).pools[0].replicas == 2


def test_reserved_flags_are_named():
    assert [flag for flag in RESERVED_FLAGS if f"`{flag}`" not in PAGE] == []
