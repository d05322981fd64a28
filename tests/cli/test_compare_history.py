"""`phasewise compare --history` as it is typed."""

import json

import pytest
from typer.testing import CliRunner

from phasewise.benchmark.compare.ledger import LedgerFile, PredictionCheck
from phasewise.cli.app import app
from phasewise.core.errors import ConfigError
from phasewise.core.statistics import Interval
from phasewise.report import console
from tests.benchmark.compare.builders import make_outcome, make_prediction


@pytest.fixture(autouse=True)
def _a_wide_screen(monkeypatch):
    """The console takes its width from COLUMNS once, which is whatever it was when it was imported."""
    monkeypatch.setattr(console.out, "_width", 120)


def invoke(*arguments):
    return CliRunner().invoke(app, ["compare", "--history", *arguments])


@pytest.fixture
def file(tmp_path):
    ledger = LedgerFile(tmp_path / "ledger.jsonl")
    for run, outcome in (("a", PredictionCheck.HELD), ("b", PredictionCheck.WRONG_SIGN), ("c", None)):
        ledger.add(make_prediction(f"{run}-ttft_p50"))
        if outcome is not None:
            ratio = 1.4 if outcome is PredictionCheck.WRONG_SIGN else 0.5
            measured = Interval(ratio - 0.1, ratio + 0.1, 0.95)
            ledger.add(make_outcome(f"{run}-ttft_p50", outcome, ratio=ratio, interval=measured))
    ledger.add(make_prediction("c-tpot_p50", metric="tpot_p50", aim=False, ratio=None))
    return ledger.path


def test_every_prediction_stands_beside_its_outcome_with_the_score_below(file):
    done = invoke("--ledger", str(file))
    assert done.exit_code == 0
    for words in ("batch cap too low", "max_num_seqs 8", "TTFT p50", "(TPOT p50)", "-50%", "-30 to -70%"):
        assert words in done.stdout, words
    assert [word in done.stdout for word in ("held", "WRONG SIGN", "open")] == [True] * 3
    assert "Coverage: 1 of 2 lay within the predicted interval (50%; 9% to 91%" in done.stdout
    assert "Right direction: 1 of 2" in done.stdout
    assert "less than 2.3 times" in done.stdout
    assert "2 judged, 0 inconclusive, 0 without a prediction, 1 open" in done.stdout


def test_the_ledger_for_programs_has_every_entry_and_the_score(file):
    facts = json.loads(invoke("--ledger", str(file), "--json").stdout)
    assert facts["score"]["judged"] == 2
    assert facts["score"]["open"] == 1
    assert facts["entries"][0]["outcome"]["held"] == "held"
    assert facts["entries"][2]["outcome"] is None
    assert facts["entries"][0]["prediction"]["ratio"] == {"low": 0.3, "high": 0.7, "confidence": 0.9}


def test_the_ledger_in_the_data_folder_is_the_default_and_an_empty_one_says_how_to_fill_it(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("PHASEWISE_HOME", str(tmp_path))
    done = invoke()
    assert done.exit_code == 0
    assert str(tmp_path / "ledger.jsonl") in done.stderr.replace("\n", "")
    assert "phasewise compare FLEET --fix" in done.stderr


def test_lines_that_cannot_be_read_are_counted(file):
    with file.open("ab") as ledger:
        ledger.write(b"torn")
    done = invoke("--ledger", str(file))
    assert "1 lines were skipped" in done.stderr
    assert "Coverage: 1 of 2" in done.stdout


def test_a_ledger_that_is_a_folder_is_one_sentence(tmp_path):
    done = invoke("--ledger", str(tmp_path))
    assert isinstance(done.exception, ConfigError)
