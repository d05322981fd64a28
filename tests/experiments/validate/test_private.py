"""What a report must not hold is taken out of every text."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.experiments.validate.private import PrivateNames, without_addresses


@pytest.mark.parametrize(
    "secret",
    [
        "http://10.0.0.7:8000/v1", "https://wheels.corp.example/x", "/home/alice/models/llama", "~/models/x",
        "192.168.1.4", "192.168.1.4:8000", "fe80::1ff:fe23:4567:890a", "::1",
        "gpu-box:8000", "alice@gpu-box.corp",
        "/tmp/phasewise-validate-x/validate-base.yaml", "redis://:hunter2@cache", "localhost:9100",
    ],
)  # fmt: skip
def test_addresses_and_paths_are_taken_out(secret):
    cleaned = without_addresses(f"engine at {secret} did not start")
    assert secret not in cleaned
    assert not any(part in cleaned for part in ("alice", "corp", "hunter2", "192.168", "fe80", "box"))
    assert cleaned.startswith("engine at (")


@pytest.mark.parametrize(
    "text",
    [
        "0.32.0+cpu", "535.104.05", "NVIDIA H100 80GB HBM3", "Qwen/Qwen2.5-1.5B-Instruct", "12 tokens/s",
        "TTFT -77% (-91 to -38%)", "ratio 1.012; noise 4%", "2.13.0+cu128", "docs/measured.md", "on / off",
        "Intel(R) Xeon(R) CPU @ 2.20GHz",
    ],
)  # fmt: skip
def test_ordinary_texts_stay(text):
    assert without_addresses(text) == text


def test_names_of_hosts_and_users_are_taken_out_as_words():
    private = PrivateNames(("box-7.corp", "box-7", "alice", "", "vi"))
    cleaned = private.taken_out("Alice's engine on box-7.corp and BOX-7_gpu via\nmalice in alice-x")
    assert cleaned == "(private)'s engine on (private) and (private)_gpu via malice in (private)-x"


@given(st.text())
def test_cleaning_twice_changes_nothing_more(text):
    once = without_addresses(text)
    assert without_addresses(once) == once


@pytest.mark.parametrize("piece", ["/a", "a.", "1:", "a@", "a-", "http://", "1.1.", "::", "~/"])
def test_no_text_takes_long(piece):
    """Twice the text may take about twice the time; a quadratic pattern takes seconds for this one."""
    began_s = time.process_time()
    without_addresses(piece * 50_000)
    assert time.process_time() - began_s < 3.0
