"""Wrong usage ends every command with code 2 and says what to type; what fails at run time ends it with 1."""

from __future__ import annotations

import sys

import pytest

from phasewise.cli.app import main

URL = "http://127.0.0.1:9"


def run(monkeypatch, capsys, *arguments: str) -> tuple[object, str]:
    """The exit code of a command, and what it wrote to stderr."""
    monkeypatch.setattr(sys, "argv", ["phasewise", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    return left.value.code, " ".join(capsys.readouterr().err.split())


WRONG = {
    "bench rate and concurrency": ("bench", URL, "--rate", "1", "--concurrency", "2"),
    "bench slo without a unit": ("bench", URL, "--slo", "ttft=1"),
    "bench slo twice": ("bench", URL, "--slo", "ttft=1s,ttft=2s"),
    "bench rate": ("bench", URL, "--rate", "-1"),
    "bench sweep": ("bench", URL, "--sweep", "rate"),
    "bench sweep and rate": ("bench", URL, "--sweep", "rate=1", "--rate", "2"),
    "bench duration": ("bench", URL, "--duration", "30 s"),
    "bench attainment": ("bench", URL, "--find-max-rate", "--attainment", "2"),
    "bench warm-up": ("bench", URL, "--warm-up", "9", "--requests", "9"),
    "bench address": ("bench", "http://"),
    "bench shared prefix": ("bench", URL, "--shared-prefix-tokens", "90", "--prompt-tokens", "80"),
    "cache purge": ("cache", "purge"),
    "calibrate minutes": ("engine", "calibrate", URL, "--minutes", "0"),
    "calibrate gpu": ("engine", "calibrate", URL, "--gpu", "nothing"),
    "compare margin": ("compare", URL, URL, "--margin", "3"),
    "compare two kinds": ("compare", URL, "fleet.yaml"),
    "compare a file of no fleet": ("compare", URL, "fleet.txt"),
    "diagnose slo": ("diagnose", URL, "--slo", "e2e=1s"),
    "diagnose probe with a window": ("diagnose", URL, "--probe", "--window", "30"),
    "diagnose seed without a probe": ("diagnose", URL, "--seed", "3"),
    "diagnose model without a probe": ("diagnose", URL, "--model", "m"),
    "diagnose window": ("diagnose", URL, "--window", "soon"),
    "diagnose short window": ("diagnose", URL, "--window", "500ms"),
    "diagnose target": ("diagnose", "localhost"),
    "explain nothing": ("explain",),
    "explain a request and a list": ("explain", "4f", "--list"),
    "explain a request with a filter": ("explain", "4f", "--slowest", "ttft"),
    "explain a list on a page": ("explain", "--list", "--html", "page.html"),
    "explain since": ("explain", "--list", "--since", "yesterday"),
    "fake ports": ("engine", "fake", "--port", "65535", "--count", "2"),
    "levers device without a model": ("levers", "--gpu", "A100"),
    "model fetch": ("model", "fetch", "nothing"),
    "plan": ("plan", "--rate", "1", "--attainment", "3"),
    "sheet assume": ("model", "sheet", "llama-3.1-8b", "--assume", "compute"),
    "simulate": ("simulate", "--scale", "nothing", "--vary", "main=1,2"),
    "simulate without costs": ("simulate", "--rate", "1"),
    "top slo": ("top", URL, "--slo", "ttft=-1s"),
    "up demo": ("up", "--demo", "--model", "m"),
    "verify": ("verify", URL),
}


@pytest.mark.parametrize("arguments", WRONG.values(), ids=WRONG)
def test_wrong_usage_ends_with_code_2(monkeypatch, capsys, arguments):
    code, said = run(monkeypatch, capsys, *arguments)
    assert code == 2, said
    assert "error" in said.lower(), said


@pytest.mark.parametrize(
    "arguments",
    [
        ("bench", URL, "--requests", "1"),
        ("bench", "127.0.0.1:9", "--requests", "1", "--timeout", "30s", "--duration", "1m"),
        ("diagnose", "127.0.0.1:9", "--window", "2s"),
        ("top", "localhost:9", "--once"),
        ("explain", "--list", "--gateway", "127.0.0.1:9/v1"),
    ],
    ids=" ".join,
)
def test_a_server_that_does_not_answer_ends_with_code_1(monkeypatch, capsys, arguments):
    code, said = run(monkeypatch, capsys, *arguments)
    assert code == 1, said
    assert "http://" in said


def test_a_comparison_of_two_kinds_says_what_to_type_instead(monkeypatch, capsys):
    _, said = run(monkeypatch, capsys, "compare", URL, "a.yaml")
    assert "phasewise up a.yaml --detach" in said
