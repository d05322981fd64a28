"""A fleet file whose pools cannot transfer KV is rejected when it is read, with the lines to change."""

import json
import re

import pytest
import yaml

from phasewise.core.errors import ConfigError
from phasewise.fleet.config import fleet_from, load_fleet

FILE = """\
version: 1
pools:
  - name: p
    role: prefill
    {p}
  - name: d
    role: decode
    {d}
"""
NOTHING = "slots: 4"
FP8 = "levers: {kv_dtype: fp8}"
EAGLE = """engine_flags: [--speculative-config, '{"method":"eagle","model":"e"}']"""


def complaint(tmp_path, text):
    path = tmp_path / "fleet.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_fleet(path)
    assert re.search("equal settings|each line says", caught.value.hint)
    return caught.value.message.replace(f"{path}", "fleet.yaml")


def of_pair(tmp_path, p=NOTHING, d=NOTHING):
    return complaint(tmp_path, FILE.format(p=p, d=d))


def connector(**settings):
    settings = {"kv_connector": "NixlConnector", "kv_role": "kv_both", **settings}
    return f"engine_flags: ['--kv-transfer-config', '{json.dumps(settings)}']"


def test_every_mistake_begins_with_its_line(tmp_path):
    said = complaint(
        tmp_path, "version: 1\npools:\n  - name: a\n\n    levers:\n      max_runing: 4\nname: Bad\n"
    )
    assert [line.split(":")[0] for line in said.splitlines()] == ["fleet.yaml line 6", "fleet.yaml line 7"]


def test_what_is_missing_is_reported_at_the_line_of_what_should_hold_it(tmp_path):
    said = complaint(tmp_path, "gateway:\n  port: 8080\n  tls:\n    key: k.pem\n")
    assert said.startswith("fleet.yaml line 3: gateway.tls.certificate: ")


def test_a_part_that_holds_itself_does_not_hide_a_mistake(tmp_path):
    said = complaint(tmp_path, "pools: &pools\n  - *pools\n")
    assert said.startswith("fleet.yaml line ")


def test_parts_named_again_and_again_do_not_multiply(tmp_path):
    levels = "\n".join(f"k{n}: &k{n} [{', '.join([f'*k{n - 1}'] * 9)}]" for n in range(1, 40))
    assert "fleet.yaml line 1: k0" in complaint(tmp_path, f"k0: &k0 [x]\n{levels}\n")


@pytest.mark.parametrize(("role", "other"), [("prefill", "decode"), ("decode", "prefill")])
def test_a_side_without_the_other_is_rejected(tmp_path, role, other):
    said = complaint(tmp_path, f"pools:\n  - name: a\n  - name: b\n    role: {role}\n")
    assert said.startswith(f"fleet.yaml line 4: pools.1.role: is '{role}'")
    assert f"add a pool with role: {other}" in said


@pytest.mark.parametrize(
    ("p", "d", "line", "words"),
    [
        (NOTHING, FP8, 8, "KV cache is 'fp8' in pool d and the engine's default in pool p"),
        (FP8, NOTHING, 5, "KV cache is 'fp8' in pool p and the engine's default in pool d"),
        (FP8, "levers: {kv_dtype: bfloat16}", 8, "'bfloat16' in pool d and 'fp8' in pool p (line 5)"),
        (FP8, "engine_flags: [--kv_cache_dtype=auto]", 5, "in pool d (line 8)"),
        ("levers: {weight_quantization: fp8}", NOTHING, 5, "quantization of the weights is 'fp8'"),
        (NOTHING, "engine_flags: [--seed, '7', -q, fp8]", 8, "pools.1.engine_flags.2: the quantization"),
        ("levers: {attention_backend: A}", "levers: {attention_backend: B}", 8, "attention backend"),
        (NOTHING, "engine_flags: [--dtype, float16]", 8, "dtype is 'float16'"),
        ("engine_flags: [--block-size, '16']", "engine_flags: [--block-size, '32']", 8, "KV block is '32'"),
        (NOTHING, "engine_flags: [--revision=abc]", 8, "revision is 'abc'"),
        (NOTHING, EAGLE, 8, "'eagle e'"),
    ],
)  # fmt: skip
def test_pools_that_differ_in_what_kv_is_made_of_are_rejected_with_both_lines(tmp_path, p, d, line, words):
    said = of_pair(tmp_path, p, d)
    assert said.startswith(f"fleet.yaml line {line}: pools.")
    assert words in said
    assert "write the same in both pools" in said


@pytest.mark.parametrize(
    ("d", "words"),
    [
        (connector(kv_role="kv_producer"), "kv_role is 'kv_producer' in pool d, whose role is 'decode'"),
        (
            connector(kv_connector="LMCacheConnectorV1"),
            "'LMCacheConnectorV1', which phasewise cannot",
        ),
        (connector(kv_connector="MultiConnector"), "'MultiConnector', which phasewise cannot"),
        ("engine_flags: ['--kv-transfer-config={kv_role']", "is not a JSON object"),
        ("engine_flags: ['--kv-transfer-config.kv_role', kv_both]", "key by key"),
    ],
)
def test_a_connector_of_the_files_own_must_fit(tmp_path, d, words):
    said = of_pair(tmp_path, d=d)
    assert said.startswith("fleet.yaml line 8: pools.1.engine_flags.0: ")
    assert words in said


def test_kv_that_is_kept_shorter_than_the_gateway_believes_is_rejected(tmp_path):
    p = connector(kv_connector_extra_config={"kv_lease_duration": 20})
    said = of_pair(tmp_path, p=p)
    assert "keeps KV for 20 s (kv_lease_duration), less than gateway.kv_transfer.lease_s, which is 30" in said


@pytest.mark.parametrize(
    "differing",
    [
        "levers: {max_num_batched_tokens: 64, max_num_seqs: 3, "
        "kv_cache_memory_bytes: 2GiB, prefix_cache: false}",
        "levers: {speculation: {tokens: 3}, kv_dtype: auto}",
        "engine_flags: [--dtype, auto, --max-num-seqs, '9']",
        connector(),
        connector(kv_connector_extra_config={"kv_lease_duration": 90}),
        connector(
            kv_connector="MultiConnector",
            kv_connector_extra_config={
                "connectors": [{"kv_connector": "NixlConnector", "kv_role": "kv_both"}]
            },
        ),
    ],
)
@pytest.mark.parametrize("side", ["p", "d"])
def test_pools_may_differ_in_what_kv_is_not_made_of(side, differing):
    text = FILE.format(**{"p": NOTHING, "d": NOTHING, side: differing})
    assert fleet_from(yaml.safe_load(text), "test").pools[1].role == "decode"


def test_a_fleet_without_a_file_is_checked_alike():
    pools = [{"name": "p", "role": "prefill"}, {"name": "d", "role": "decode", "levers": {"kv_dtype": "fp8"}}]
    with pytest.raises(ConfigError, match=r"^what-if: pools\.1\.levers\.kv_dtype: .* \(pools\.0\)"):
        fleet_from({"pools": pools}, "what-if")


def test_pools_that_take_both_phases_may_differ_in_everything():
    pools = [{"name": "a", "levers": {"kv_dtype": "fp8"}}, {"name": "b", "engine_flags": ["--dtype", "half"]}]
    assert len(fleet_from({"pools": pools}, "test").pools) == 2
