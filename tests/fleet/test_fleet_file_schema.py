"""The JSON Schema of fleet files says what the parser accepts: the same keys, and the same mistakes."""

import re
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from phasewise.cli.app import app
from phasewise.core.errors import ConfigError
from phasewise.fleet.config import SCHEMA, FleetConfig, GatewayFile, load_fleet, load_gateway_file
from phasewise.fleet.config.reading import _models_in
from tests.paths import ROOT
from tests.test_docs import tool_named

TOOL = tool_named("fleet_schema")
VALIDATOR = Draft202012Validator(TOOL.schema())
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def problems(text):
    return [error.message for error in VALIDATOR.iter_errors(yaml.safe_load(text))]


def test_the_published_schema_is_that_of_the_models():
    """Fixed by: python tools/fleet_schema.py"""
    Draft202012Validator.check_schema(TOOL.schema())
    assert SCHEMA.read_text() == TOOL.text()


def test_a_command_prints_it():
    assert CliRunner().invoke(app, ["check", "--schema"]).stdout == SCHEMA.read_text()


def models_from(*models):
    """The models of a file, down to the last part."""
    found = {}
    waiting = list(models)
    while waiting:
        model = waiting.pop()
        found[model.__name__] = model
        inner = [it for field in model.model_fields.values() for it in _models_in(field.annotation)]
        waiting += [it for it in inner if it.__name__ not in found]
    return found


def test_every_key_that_the_parser_knows_is_in_the_schema_and_no_other():
    objects = {name: part for name, part in TOOL.schema()["$defs"].items() if "properties" in part}
    parser = {name: set(it.model_fields) for name, it in models_from(FleetConfig, GatewayFile).items()}
    assert {name: set(part["properties"]) for name, part in objects.items()} == parser
    assert all(part["additionalProperties"] is False for part in objects.values())


def test_nearly_every_key_of_a_fleet_file_is_explained():
    parts = TOOL.schema()["$defs"]
    silent = {
        (name, key)
        for name in models_from(FleetConfig)
        for key, value in parts[name]["properties"].items()
        if not value.get("description")
    }
    plain = {("GatewayConfig", "port"), ("LogConfig", "format"), ("RedisConfig", "url"), ("SloClass", "name")}
    assert silent == plain  # what their names say
    assert "](" not in SCHEMA.read_text()


def files_of_the_repository():
    found = [*ROOT.glob("examples/*.yaml"), ROOT / "deploy" / "gateway.yaml"]
    yield from ((str(path.relative_to(ROOT)), path.read_text()) for path in sorted(found))
    for page in PAGES:
        for number, block in enumerate(re.findall(r"```yaml\n(.*?)```", page.read_text(), flags=re.DOTALL)):
            whole = re.sub(r": \.\.\.(?=\s)", f": {'ab' * 32}", block)
            read = yaml.safe_load(whole)
            if isinstance(read, dict) and ("pools" in read or {"gateway", "workers"} <= set(read)):
                yield f"{page.relative_to(ROOT)} {number}", whole


FILES = dict(files_of_the_repository())


@pytest.mark.parametrize("name", FILES)
def test_every_example_fits_the_schema(name):
    assert problems(FILES[name]) == []


def test_examples_of_both_kinds_were_found():
    assert {"examples/disaggregated.yaml", "deploy/gateway.yaml"} <= set(FILES)
    assert any(name.startswith("docs/") for name in FILES)


WORKER = "workers: [{name: a, url: 'http://127.0.0.1:8000', model: m"
WRONG = [
    "pools: [{replicas: 0}]",
    "pools: [{replicas: 65}]",
    "pools: [{levers: {max_runing: 4}}]",
    "pools: [{levers: {kv_cache_memory_bytes: 3 gigs}}]",
    "pools: [{levers: {speculation: {method: eagle}}}]",
    "pools: [{role: both}]",
    "pools: []",
    "pools: [{cores: 1, gpus: 1}]",
    "pools: [{engine: sglang}]",
    "pools: [{engine: llama.cpp, role: prefill}, {name: d, role: decode}]",
    "pools: [{engine: llama.cpp, gpus: 1}]",
    "pools: [{engine: llama.cpp, levers: {kv_dtype: fp8}}]",
    "pools: [{engine: llama.cpp, levers: {speculation: {tokens: 3}}}]",
    "name: My Fleet",
    "version: 2",
    "first_engine_port: 70000",
    "gateway: {api_keys: [{sha256: secret}]}",
    "gateway: {api_keys: [{tenant: a}]}",
    "gateway: {host: 0.0.0.0}",
    "gateway: {tls: {certificate: a.pem}}",
    "gateway: {cache: {semantic: {judge: {kind: embedding}}}}",
    "gateway: {cache: {semantic: {judge: {share: 0}}}}",
    "gateway: {cache: {semantic: {embedder: {kind: http}}}}",
    "gateway: {cache: {mode: on}}",
    "gateway: {kv_transfer: {when: sometimes}}",
    "[1, 2]",
    f"gateway: {{}}\n{WORKER}, slots: 0}}]",
    f"gateway: {{}}\n{WORKER}, tls: {{key: a.pem}}}}]",
    f"{WORKER}}}]",
]


@pytest.mark.parametrize("text", WRONG)
def test_a_mistake_is_one_for_the_parser_and_for_the_schema(text, tmp_path):
    assert problems(text) != []
    file = Path(tmp_path / "fleet.yaml")
    file.write_text(text)
    with pytest.raises(ConfigError):
        (load_gateway_file if "workers" in text else load_fleet)(file)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "pools: [{cores: 2, gpus: null}]",
        "pools: [{engine: llama.cpp, cores: 2, gpus: null, levers: {max_num_seqs: 2, kv_dtype: null}}]",
        "pools: [{}, {name: small, engine: llama.cpp}]",
        "gateway: {host: localhost}",
        f"gateway: {{host: 0.0.0.0, api_keys: [{{sha256: {'ab' * 32}}}]}}",
        "gateway: {cache: {semantic: {embedder: {model: minilm-l6}}}}",
        "gateway: {cache: {semantic: {judge: {model: m, share: 1}}}}",
        "gateway: {cache: {semantic: {judge: {kind: score, model: m, min_score: 0.7}}}}",
    ],
)
def test_what_the_parser_accepts_fits_the_schema(text, tmp_path):
    assert problems(text) == []
    file = Path(tmp_path / "fleet.yaml")
    file.write_text(text)
    load_fleet(file)
