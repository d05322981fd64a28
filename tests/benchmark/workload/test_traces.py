from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from phasewise.benchmark.workload.traces import BLOCK_TOKENS, TracedRequest, read_trace
from phasewise.core.errors import ConfigError
from tests.paths import ROOT

SHARED_DATA = ROOT.parent / "shared" / "data"
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
AZURE = f"""{HEADER}\r
2023-11-16 18:17:03.9799600,4808,10\r
2023-11-16 18:17:04.0319600,3180,8\r
2023-11-16 18:17:05.9799600,110,27"""
MOONCAKE = """{"timestamp": 3000, "input_length": 1200, "output_length": 52, "hash_ids": [46, 47, 48]}
{"timestamp": 3500, "input_length": 600, "output_length": 1, "hash_ids": [46, 2]}
"""


def written(tmp_path: Path, text: str | bytes, name: str = "trace.txt") -> Path:
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def published(name: str) -> Path:
    path = SHARED_DATA / name
    if not path.exists():
        pytest.skip(f"{path} is not on this machine")
    return path


def test_an_azure_trace_is_told_by_its_header_and_starts_at_zero(tmp_path):
    trace = read_trace(written(tmp_path, AZURE))
    assert trace.name == "trace"
    assert [(r.prompt_tokens, r.output_tokens) for r in trace.requests] == [(4808, 10), (3180, 8), (110, 27)]
    assert [r.at_s for r in trace.requests] == pytest.approx([0.0, 0.052, 2.0])


def test_azure_columns_are_found_by_name_with_a_time_zone_and_others_between(tmp_path):
    text = (
        "\ufeffGeneratedTokens,model,ContextTokens,TIMESTAMP\n"
        "7,m,5,2024-05-10 00:00:00.009930+00:00\n\n8,m,6,2024-05-10 00:00:01.009930+00:00\n"
    )
    assert read_trace(written(tmp_path, text)).requests == (
        TracedRequest(0.0, 5, 7),
        TracedRequest(1.0, 6, 8),
    )


def test_a_mooncake_trace_is_told_by_its_content_not_by_its_name(tmp_path):
    trace = read_trace(written(tmp_path, MOONCAKE, "mooncake.csv"))
    assert trace.requests == (
        TracedRequest(0.0, 1200, 52, (46, 47, 48)),
        TracedRequest(0.5, 600, 1, (46, 2)),
    )


def test_requests_out_of_order_are_put_into_it(tmp_path):
    lines = AZURE.split("\r\n")
    trace = read_trace(written(tmp_path, "\n".join([lines[0], *reversed(lines[1:])])))
    assert [r.prompt_tokens for r in trace.requests] == [4808, 3180, 110]
    assert trace.requests[0].at_s == 0.0


def mooncake(**changed: str) -> str:
    fields = {"timestamp": "0", "input_length": "1200", "output_length": "5", "hash_ids": "[1, 2, 3]"}
    return "{" + ", ".join(f'"{name}": {value}' for name, value in (fields | changed).items()) + "}"


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("2023-11-16 18:17:03,10", "2 columns are too few"),
        ("yesterday,10,10", "TIMESTAMP is 'yesterday'"),
        ("2023-11-16 18:17:03,ten,10", "ContextTokens is 'ten'"),
        ("2023-11-16 18:17:03,0,10", "ContextTokens is 0"),
        ("2023-11-16 18:17:03,10,-1", "GeneratedTokens is '-1'"),
        ('"2023-11-16 18:17:03,10,1', "not a line of a CSV"),
    ],
)
def test_an_azure_line_that_cannot_be_is_named(tmp_path, line, complaint):
    path = written(tmp_path, f"{HEADER}\n2023-11-16 18:17:03,1,1\n\n{line}\n")
    with pytest.raises(ConfigError, match=complaint) as error:
        read_trace(path)
    assert f"{path}, line 4:" in str(error.value)
    assert HEADER in str(error.value)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "not a JSON object"),
        ("[1]", "not a JSON object"),
        (mooncake(timestamp="true"), "timestamp is True"),
        (mooncake(timestamp='"now"'), "timestamp is 'now'"),
        (mooncake(input_length="1.5"), "input_length is 1.5"),
        (mooncake(input_length="0"), "input_length is 0"),
        (mooncake(output_length="null"), "output_length is None"),
        (mooncake(hash_ids="7"), "hash_ids is 7"),
        (mooncake(hash_ids='["a"]'), "hash_ids is"),
        (mooncake(hash_ids="[1]"), "1 hash_ids for 1200 tokens: one covers 512"),
        (mooncake(hash_ids=str(list(range(75)))), "75 hash_ids for 1200 tokens"),
    ],
)
def test_a_mooncake_line_that_cannot_be_is_named(tmp_path, line, complaint):
    path = written(tmp_path, f"{mooncake()}\n{line}\n")
    with pytest.raises(ConfigError, match=complaint) as error:
        read_trace(path)
    assert f"{path}, line 2:" in str(error.value)


def test_the_id_of_a_last_block_that_is_not_full_may_be_missing(tmp_path):
    assert read_trace(written(tmp_path, mooncake(hash_ids="[1, 2]"))).requests[0].block_ids == (1, 2)
    assert read_trace(written(tmp_path, mooncake(hash_ids="[]"))).requests[0].block_ids == ()


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "holds no requests"),
        (HEADER, "holds no requests"),
        ("a,b\n1,2\n", "line 1: neither a known header nor a request"),
        (b"\xff\xfe\x00", "is not text"),
    ],
)
def test_a_file_that_is_no_trace_is_rejected_with_what_is_accepted(tmp_path, content, complaint):
    with pytest.raises(ConfigError, match=complaint) as error:
        read_trace(written(tmp_path, content))
    assert "Mooncake" in str(error.value)


def test_a_file_that_cannot_be_opened_is_one_sentence(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_trace(tmp_path / "absent.csv")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_trace(tmp_path)


@pytest.mark.parametrize(
    ("name", "requests", "hours"),
    [
        ("azure_2023_code.csv", 8819, 0.95),
        ("azure_2023_conv.csv", 19366, 0.97),
        ("mooncake_conversation.jsonl", 12031, 0.98),
        ("mooncake_synthetic.jsonl", 3993, 0.28),
    ],
)
def test_the_published_traces_are_read_whole(name, requests, hours):
    trace = read_trace(published(name))
    assert len(trace.requests) == requests
    assert trace.requests[0].at_s == 0.0
    assert trace.requests[-1].at_s / 3600 == pytest.approx(hours, abs=0.01)
    assert all(earlier.at_s <= later.at_s for earlier, later in pairwise(trace.requests))


def test_a_published_traces_blocks_cover_its_prompts():
    for request in read_trace(published("mooncake_conversation.jsonl")).requests[:500]:
        assert len(request.block_ids) == -(-request.prompt_tokens // BLOCK_TOKENS)
