"""`phasewise cache evaluate` counts what rules would do to pairs, and names the row of bad files."""

import orjson
import pytest
from typer.testing import CliRunner

from phasewise.cli.app import app
from phasewise.cli.cache_evaluate import QuestionPair, read_pairs
from phasewise.core.errors import ConfigError, PhasewiseError
from phasewise.fake_engine.engine import FakeEngineConfig
from phasewise.report import console
from phasewise.report.evaluation import WHICH_GUARDS, render
from phasewise.semantic_match.evaluation import RULES, ScoredPair
from phasewise.semantic_match.evaluation import evaluate as evaluate_rules
from tests.fake_engine_thread import running_fake_engine

HEAD = "kind\tduplicate\ta\tb\n"
PAIRS = (
    HEAD
    + "same\t1\tHow do I pay?\tHow do I pay?\n"
    + "number\t0\tDo I pay 5 pounds?\tDo I pay 7 pounds?\n"
    + "odd <b>kind</b>\t0\tMay I pay?\tMay I leave?\n"
)


@pytest.fixture(autouse=True)
def _a_wide_screen(monkeypatch):
    monkeypatch.setattr(console.out, "_width", 160)


@pytest.fixture(scope="module")
def engine():
    with running_fake_engine(FakeEngineConfig()) as running:
        yield running


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text(PAIRS)
    return path


def evaluate(file, engine, *options):
    server = ("--embedder-url", engine.base_url, "--embedder-model", engine.model)
    return CliRunner().invoke(app, ["cache", "evaluate", str(file), *server, *options])


def test_rules_and_kinds_are_reported_with_bars(file, engine):
    reported = evaluate(file, engine)
    assert reported.exit_code == 0, reported.output
    for words in (
        "3 pairs, embedded by",
        "0.90   │ all but content │",
        "0.90   │ all             │",
        "False hits by kind",
        " 100% ████████",
    ):
        assert words in reported.stdout, words


@pytest.mark.parametrize("pairs", [1, 2])
def test_every_row_of_the_rules_fits_an_ordinary_screen_and_pairs_are_counted_in_english(pairs, monkeypatch):
    monkeypatch.setattr(console.out, "_width", 80)
    many = [ScoredPair("modifier", False, 0.99)] * 1_999
    with console.out.capture() as captured:
        console.out.print(render(evaluate_rules(many), pairs, "minilm"))
    reported = captured.get().splitlines()
    assert reported[0] == f"{pairs} pair{'s' if pairs == 2 else ''}, embedded by minilm"
    for rule in RULES:
        start = f"│ {rule.min_similarity:.2f}   │ {WHICH_GUARDS[rule.guarding]:<15} │"
        (row,) = (line for line in reported if line.startswith(start))
        assert "1,999 of 1,999 │ modifier" in row


def test_results_for_programs_hold_every_rule_and_kind(file, engine):
    facts = orjson.loads(evaluate(file, engine, "--json").stdout)
    assert facts["pairs"] == 3
    assert [rule["guards"] for rule in facts["rules"]] == ["none"] * 3 + ["but_content"] * 3 + ["all"] * 3
    guarded = facts["rules"][-1]
    assert (guarded["duplicates"], guarded["hits"], guarded["recall"]) == (1, 1, 1.0)
    assert {kind["kind"]: kind["false_hits"] for kind in guarded["kinds"]}["number"] == 0


def test_a_server_without_a_model_is_rejected(file):
    reported = CliRunner().invoke(
        app, ["cache", "evaluate", str(file), "--embedder-url", "http://127.0.0.1:9"]
    )
    assert "--embedder-model" in reported.exception.message


def test_a_model_that_is_not_here_says_how_to_fetch_it(file, tmp_path, monkeypatch):
    monkeypatch.setenv("PHASEWISE_HOME", str(tmp_path))
    reported = CliRunner().invoke(app, ["cache", "evaluate", str(file)])
    assert isinstance(reported.exception, PhasewiseError)
    assert "phasewise model fetch minilm-l6" in reported.exception.hint


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the header has no column kind, duplicate, a, b"),
        ("kind\ta\tb\n", "the header has no column duplicate"),
        (HEAD, "holds no pairs"),
        (HEAD + "k\t1\ta secret\n", "line 2: b is empty"),
        (HEAD + "k\t1\ta\tb\nk\tmaybe\ta secret\tb\n", "line 3: duplicate is neither 0 nor 1"),
        (HEAD + "\nk\t0\ta secret\t \n", "line 3: b is empty"),
    ],
)
def test_a_bad_file_is_reported_by_its_line_and_not_by_its_words(tmp_path, text, says):
    path = tmp_path / "pairs.tsv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=says) as reported:
        read_pairs(path)
    assert "secret" not in str(reported.value)


def test_a_file_that_is_no_text_or_not_there_is_said(tmp_path):
    path = tmp_path / "pairs.tsv"
    with pytest.raises(ConfigError, match="cannot be read"):
        read_pairs(path)
    path.write_bytes(HEAD.encode() + b"\xff\xfe")
    with pytest.raises(ConfigError, match="not text in UTF-8"):
        read_pairs(path)


def test_columns_may_stand_in_any_order_beside_others_and_after_a_byte_order_mark(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_bytes("\ufeffid\tb\ta\tduplicate\tkind\r\n1\tB?\tA\u2028?\ttrue\tk\r\n".encode())
    assert read_pairs(path) == [QuestionPair("k", True, "A\u2028?", "B?")]


def test_a_server_that_does_not_know_the_model_is_one_sentence_about_the_options(file, engine):
    server = ("--embedder-url", engine.base_url, "--embedder-model", "another")
    reported = CliRunner().invoke(app, ["cache", "evaluate", str(file), *server])
    assert "HTTP 404" in reported.exception.message
    assert "options" in reported.exception.hint
