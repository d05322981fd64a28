"""`phasewise cache evaluate` counts what rules would do to pairs, and tells bad files by their line."""

import orjson
import pytest
from typer.testing import CliRunner

from phasewise.caching.evaluation import RULES, Pair
from phasewise.caching.evaluation import evaluate as evaluate_rules
from phasewise.cli import console
from phasewise.cli.app import app
from phasewise.cli.evaluation_view import WHICH_GUARDS, render
from phasewise.cli.question_pairs import QuestionPair, read_pairs
from phasewise.errors import ConfigError, PhasewiseError
from phasewise.fake_engine.engine import FakeEngineConfig
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


def test_rules_and_kinds_are_told_with_bars(file, engine):
    told = evaluate(file, engine)
    assert told.exit_code == 0, told.output
    for words in (
        "3 pairs, embedded by",
        "0.90   │ all but content │",
        "0.90   │ all             │",
        "False hits by kind",
        " 100% ████████",
    ):
        assert words in told.stdout, words


@pytest.mark.parametrize("pairs", [1, 2])
def test_every_row_of_the_rules_fits_an_ordinary_screen_and_pairs_are_counted_in_english(pairs, monkeypatch):
    monkeypatch.setattr(console.out, "_width", 80)
    many = [Pair("modifier", False, 0.99)] * 1_999
    with console.out.capture() as captured:
        console.out.print(render(evaluate_rules(many), pairs, "minilm"))
    told = captured.get().splitlines()
    assert told[0] == f"{pairs} pair{'s' if pairs == 2 else ''}, embedded by minilm"
    for rule in RULES:
        start = f"│ {rule.min_similarity:.2f}   │ {WHICH_GUARDS[rule.guarding]:<15} │"
        (row,) = (line for line in told if line.startswith(start))
        assert "1,999 of 1,999 │ modifier" in row


def test_results_for_programs_hold_every_rule_and_kind(file, engine):
    facts = orjson.loads(evaluate(file, engine, "--json").stdout)
    assert facts["pairs"] == 3
    assert [rule["guards"] for rule in facts["rules"]] == ["none"] * 3 + ["but_content"] * 3 + ["all"] * 3
    guarded = facts["rules"][-1]
    assert (guarded["duplicates"], guarded["hits"], guarded["recall"]) == (1, 1, 1.0)
    assert {kind["kind"]: kind["false_hits"] for kind in guarded["kinds"]}["number"] == 0


def test_the_page_holds_the_figures_and_no_markup_of_the_files(file, engine, tmp_path):
    page = tmp_path / "page.html"
    told = evaluate(file, engine, "--html", str(page))
    assert told.exit_code == 0, told.output
    text = page.read_text()
    assert "Which near misses would be served?" in text
    assert "<b>kind</b>" not in text
    assert "How do I pay" not in text, "questions stay in their file"


def test_a_page_that_cannot_be_written_is_told_before_anything_is_embedded(file, tmp_path):
    told = CliRunner().invoke(app, ["cache", "evaluate", str(file), "--html", str(tmp_path / "no" / "page")])
    assert "--html" in told.exception.message


def test_a_server_without_a_model_is_refused(file):
    told = CliRunner().invoke(app, ["cache", "evaluate", str(file), "--embedder-url", "http://127.0.0.1:9"])
    assert "--embedder-model" in told.exception.message


def test_a_model_that_is_not_here_says_how_to_fetch_it(file, tmp_path, monkeypatch):
    monkeypatch.setenv("PHASEWISE_HOME", str(tmp_path))
    told = CliRunner().invoke(app, ["cache", "evaluate", str(file)])
    assert isinstance(told.exception, PhasewiseError)
    assert "phasewise model fetch minilm-l6" in told.exception.hint


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "names no column kind, duplicate, a, b"),
        ("kind\ta\tb\n", "names no column duplicate"),
        (HEAD, "holds no pairs"),
        (HEAD + "k\t1\ta secret\n", "line 2: 3 columns where 4 are needed"),
        (HEAD + "k\t1\ta\tb\nk\tmaybe\ta secret\tb\n", "line 3: duplicate is neither 0 nor 1"),
        (HEAD + "\nk\t0\ta secret\t \n", "line 3: b is empty"),
    ],
)
def test_a_bad_file_is_told_by_its_line_and_not_by_its_words(tmp_path, text, says):
    path = tmp_path / "pairs.tsv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=says) as told:
        read_pairs(path)
    assert "secret" not in str(told.value)


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
    told = CliRunner().invoke(app, ["cache", "evaluate", str(file), *server])
    assert "HTTP 404" in told.exception.message
    assert "options" in told.exception.hint
