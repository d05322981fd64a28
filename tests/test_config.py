"""Bad configuration fails at start and names the key, the value and what is accepted."""

import time
import traceback
from pathlib import Path

import pytest
from pydantic import ValidationError

from phasewise.core.errors import ConfigError
from phasewise.fleet.config import (
    FleetConfig,
    KvTransferConfig,
    Levers,
    byte_size,
    load_fleet,
    load_gateway_file,
    load_secret,
)


def load(tmp_path: Path, text: str) -> FleetConfig:
    path = tmp_path / "fleet.yaml"
    path.write_text(text)
    return load_fleet(path)


def complaint(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert caught.value.hint
    return caught.value.message


def test_an_empty_file_is_one_engine_with_the_demo_model(tmp_path):
    fleet = load(tmp_path, "")
    assert fleet.model == "smollm2-135m"
    assert [pool.replicas for pool in fleet.pools] == [1]


def test_an_unknown_key_is_named_with_the_keys_there_are(tmp_path):
    said = complaint(tmp_path, "pools: [{levers: {max_runing: 4}}]")
    assert "pools.0.levers.max_runing: unknown key" in said
    for name in Levers.model_fields:
        assert name in said


@pytest.mark.parametrize(
    ("text", "key", "accepted"),
    [
        ("pools: [{replicas: 0}]", "pools.0.replicas is 0", "greater than or equal to 1"),
        ("pools: [{levers: {kv_cache_memory_bytes: 3 gigs}}]", "kv_cache_memory_bytes is '3 gigs'", "512MiB"),
        ("pools: [{role: both}]", "pools.0.role is 'both'", "'mixed', 'prefill' or 'decode'"),
        ("name: My Fleet", "name is 'My Fleet'", "lower-case letters"),
        ("version: 2", "version is 2", "1"),
        ("gateway: {api_keys: [{sha256: secret}]}", "api_keys.0.sha256", "64 hexadecimal"),
        ("gateway: {host: 0.0.0.0}", "gateway", "api_keys must have at least one key"),
        ("pools: [{cores: 1, gpus: 1}]", "pools.0", "cores or on gpus"),
        ("pools: [{name: a}, {name: a}]", "the file", "must be unique"),
    ],
)
def test_a_mistake_names_key_value_and_what_is_accepted(tmp_path, text, key, accepted):
    said = complaint(tmp_path, text)
    assert key in said
    assert accepted in said


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("gateway: {admin_key_sha256: hunter2}", "gateway.admin_key_sha256"),
        ("gateway: {admin_key: hunter2}", "gateway.admin_key"),
        ("gateway: {api_keys: [hunter2]}", "gateway.api_keys.0"),
        ("gateway: {api_keys: hunter2}", "gateway.api_keys"),
        ("gateway: {api_keys: [{key: hunter2, tenant: a}]}", "gateway.api_keys.0"),
        ("gateway: {api_keys: [{hunter2: a}]}", "gateway.api_keys.0"),
        ("gateway: {redis: {host: h, password: hunter2}}", "gateway.redis"),
        ("gateway: {redis: {urls: 'redis://:hunter2@h'}}", "gateway.redis"),
        ("gateway: {host: 0.0.0.0, redis: {url: 'redis://:hunter2@h'}}", "gateway"),
        ("gateway: [redis://:hunter2@h]", "gateway"),
        ("gateway: redis://:hunter2@h", "gateway"),
        ("gateway: {tls: {certificate: a, key: [hunter2]}}", "gateway.tls.key"),
        ("pools: {password: hunter2}", "pools"),
        ("api_key: hunter2", "api_key"),
        ("hunter2", "the file"),
        ("gateway:\n  redis:\n    url: redis://:hunter2@h: 6379", "line 3, column 28"),
        ("gateway: {admin_key_sha256: *hunter2}", "line 1, column 29"),
        ('gateway:\n  admin_key_sha256: "hunter2\n', "line"),
    ],
)
def test_what_may_be_a_key_or_a_password_is_not_repeated(tmp_path, text, named):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert named in caught.value.message
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


def test_a_file_that_is_not_there_or_not_yaml_says_so(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        load_fleet(tmp_path / "nowhere.yaml")
    assert "expected the node content, but found '<stream end>'" in complaint(tmp_path, "pools: [")
    assert "is not YAML" in complaint(tmp_path, "name: 2026-99-99")
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9")
    with pytest.raises(ConfigError, match="is not YAML"):
        load_fleet(tmp_path / "latin.yaml")


def test_ten_thousand_keys_are_read_in_seconds(tmp_path):
    path = tmp_path / "gateway.yaml"
    keys = "".join(f"  - {{sha256: a{number:063x}, tenant: t{number}}}\n" for number in range(10_000))
    path.write_text(f"gateway:\n  api_keys:\n{keys}workers: [{{name: a, url: 'http://x:1', model: m}}]\n")
    began_s = time.process_time()
    file = load_gateway_file(path)
    # A third of the time that it took with a parser in Python.
    assert time.process_time() - began_s < 6.0
    assert [key.tenant for key in file.gateway.api_keys[:2]] == ["t0", "t1"]


def test_sizes_are_read_in_binary_units():
    assert byte_size("1.5GiB") == 3 * 2**29
    assert byte_size("512MiB") == 2**29


@pytest.mark.parametrize("redis", ["redis://:hunter2@host", "{url: ['redis://:hunter2@host']}"])
def test_an_address_of_redis_is_not_repeated_since_it_may_hold_a_password(tmp_path, redis):
    said = complaint(tmp_path, f"gateway: {{redis: {redis}}}")
    assert "gateway.redis" in said
    assert "hunter2" not in said


def secret_file(folder, content, mode=0o600):
    path = folder / "secret"
    path.write_bytes(content)
    path.chmod(mode)
    return path


def test_a_secret_is_read_without_the_end_of_its_line(tmp_path):
    assert load_secret(secret_file(tmp_path, b"s" * 32)) == b"s" * 32
    assert load_secret(secret_file(tmp_path, b"s" * 40 + b"\n")) == b"s" * 40


def test_a_short_or_missing_secret_is_rejected_and_not_repeated(tmp_path):
    with pytest.raises(ConfigError, match="openssl rand") as caught:
        load_secret(secret_file(tmp_path, b"hunter2\n"))
    assert "hunter2" not in str(caught.value)
    with pytest.raises(ConfigError, match="full path"):
        load_secret(tmp_path / "nothing")
    with pytest.raises(ConfigError, match="salt_secret_file") as caught:
        load_secret(Path("hunter2"))
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o640, False), (0o644, True)])
def test_a_secret_that_everybody_can_read_is_warned_of(tmp_path, caplog, mode, warned):
    load_secret(secret_file(tmp_path, b"s" * 32, mode))
    assert ("chmod 600" in caplog.text) is warned


def test_a_duplicate_key_is_named_by_its_positions_and_not_repeated(tmp_path):
    key, other = "ab" * 32, "cd" * 32
    said = complaint(
        tmp_path, f"gateway: {{api_keys: [{{sha256: {key}}}, {{sha256: {other}}}, {{sha256: {key}}}]}}"
    )
    assert "api_keys[0] and api_keys[2]" in said
    assert key not in said


def test_a_first_token_may_not_be_waited_for_beyond_the_lease_of_its_kv():
    with pytest.raises(ValidationError, match="raise lease_s to twice timeout_s"):
        KvTransferConfig(timeout_s=16, lease_s=30)
    assert KvTransferConfig(timeout_s=15, lease_s=30).timeout_s == 15


def test_what_is_wrong_is_said_in_plain_words_from_the_top_of_the_file_on(tmp_path):
    path = tmp_path / "gateway.yaml"
    path.write_text(
        "gateway:\n  prot: 1\n  port: x\n  api_keys: nope\n  log: {requests: maybe}\n"
        "workers:\n  - {url: 'http://127.0.0.1:1', modle: m}\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_gateway_file(path)
    lines = caught.value.message.splitlines()
    assert [int(line.partition("line ")[2].partition(":")[0]) for line in lines] == [2, 3, 4, 5, 7, 7, 7]
    for said in (
        "gateway.prot: unknown key; did you mean port?",
        "gateway.port is 'x': accepted: a whole number",
        "gateway.api_keys: accepted: a list",
        "gateway.log.requests is 'maybe': accepted: true or false",
        "workers.0.name: this key is required",
        "workers.0.modle: unknown key; did you mean model?",
    ):
        assert said in caught.value.message


def test_nothing_is_guessed_from_a_word_that_may_be_a_key(tmp_path):
    path = tmp_path / "gateway.yaml"
    path.write_text("gateway:\n  api_keys:\n    - {sha265: abc}\nworkers: []\n")
    with pytest.raises(ConfigError) as caught:
        load_gateway_file(path)
    assert "sha265" not in caught.value.message
    assert "did you mean" not in caught.value.message
