"""A report is read as it was written; whatever else a file holds is rejected with a reason."""

import json

import pytest

from phasewise.core.errors import ConfigError
from phasewise.experiments.validate.record import REPORT_VERSION, read_report, report_json
from tests.experiments.validate.builders import make_fault, make_measured, make_report
from tests.paths import ROOT


def changed(path, value):
    """A report's document with one field changed."""
    document = json.loads(report_json(make_report()))
    *folders, name = path.split(".")
    inner = document
    for folder in folders:
        inner = inner[int(folder) if folder.isdigit() else folder]
    if value is ...:
        del inner[name]
    else:
        inner[name] = value
    return json.dumps(document).encode()


def test_a_report_is_read_as_it_was_written():
    report = make_report()
    assert read_report(report_json(report), "r.json") == report


def test_figures_that_are_missing_stay_missing():
    report = make_report(make_measured(bench=None, faults=(make_fault(ttft_p50_ms=None),)))
    assert read_report(report_json(report), "r.json").measured == report.measured


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("v", REPORT_VERSION + 1, "update phasewise"),
        ("v", 0, "again"),
        ("v", "1", "again"),
        ("v", True, "again"),
        ("format", "something", "no validation report"),
        ("hardware", ..., "hardware: Field required"),
        ("hardware.gpus", "NVIDIA", "hardware.gpus"),
        ("hardware.cores", "2", "hardware.cores"),
        ("software.vllm", None, "software.vllm"),
        ("claims", [], "claims"),
        ("claims.0.outcome", "maybe", "claims.0.outcome"),
        ("claims.0.claim", "a|b", "claims.0.claim"),
        ("measured.bench.ratio", {"ttft": "1"}, "measured.bench.ratio"),
        ("measured.faults.0.said", "<b>", "measured.faults.0.said"),
        ("hardware.processor", "two\nlines", "hardware.processor"),
        ("hardware.processor", "x" * 601, "hardware.processor"),
        ("settings.model", "/home/alice/llama", "address or a path"),
        ("settings.engine_flags", ["http://10.1.2.3"], "address or a path"),
        ("day", "today", "day"),
        ("prompt", "hello", "prompt"),
    ],
)
def test_a_wrong_field_is_named(path, value, words):
    with pytest.raises(ConfigError) as error:
        read_report(changed(path, value), "r.json")
    assert words in str(error.value)
    assert error.value.hint


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"null", b"\xff", b'{"v": 1}', b"x" * 300_000])
def test_other_files_are_no_reports(data):
    with pytest.raises(ConfigError):
        read_report(data, "r.json")


def test_every_field_is_documented():
    page = (ROOT / "docs" / "reference" / "validation-report.md").read_text()
    names = set()

    def walk(value):
        for name, inner in value.items() if isinstance(value, dict) else ():
            names.add(name)
            walk(inner)
        for inner in value if isinstance(value, list) else ():
            walk(inner)

    walk(json.loads(report_json(make_report())))
    figures = {"ttft", "tpot", "itl", "e2e", "floor_s", "decode", "mixed", "prefill"}
    assert [name for name in sorted(names - figures) if f"`{name}`" not in page] == []
