"""Both ways to start fake engines from a shell."""

import json
import signal
import subprocess
import sys
import urllib.request

from tests.real_engine import free_port

FAKE = ("phasewise.cli", "engine", "fake", "--no-steps")


def test_engines_listen_when_their_addresses_are_printed():
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", *FAKE, "--port", str(port), "--model", "m"],
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout.readline().strip() == f"http://127.0.0.1:{port}"
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=60) as reply:
            assert json.load(reply)["data"][0]["id"] == "m"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) in {0, 130}


def test_engines_kv_transfer_where_that_is_asked_for():
    process = subprocess.Popen(
        [sys.executable, "-m", *FAKE, "--port", str(free_port()), "--kv-transfer"],
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        url = process.stdout.readline().strip()
        body = {"prompt": "Once", "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
        request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=60) as reply:
            assert json.load(reply)["kv_transfer_params"]["do_remote_prefill"] is True
        process.send_signal(signal.SIGINT)
        assert process.wait(30) in {0, 130}
