"""The command line starts quickly: a command is imported when it is called."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from phasewise.cli.app import COMMANDS, PANELS, app

OWN = {"phasewise.cli.app", "phasewise.cli.groups"}


def imported_by(*arguments, **environment):
    """Our modules that a command imports, but those of core and of the console."""
    script = (
        "import sys; from phasewise.cli import app\n"
        f"try: app.app({list(arguments)}, prog_name='phasewise')\n"
        "except SystemExit: pass\n"
        "print(*(it for it in sys.modules if it.startswith('phasewise.') and it.split('.')[1] not in "
        "('core', 'report') and it != 'phasewise.cli'))"
    )
    env = {**os.environ, **environment}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=env)
    return set(done.stdout.splitlines()[-1].split())


def test_the_version_is_shown_without_what_validates_values():
    script = "import sys; from phasewise.cli.app import main; sys.argv[1:] = ['--version']\n" + (
        "try: main()\nfinally: print('pydantic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["engine", "--help"]], ids=" ".join)
def test_the_version_and_the_lists_of_commands_are_shown_without_importing_any(arguments):
    assert imported_by(*arguments) == OWN


@pytest.mark.parametrize(
    ("arguments", "siblings"),
    [
        (["engine", "fake", "--help"], {"engine", "engine_calibrate"}),
        (["engine", "calibrate", "--help"], {"engine", "engine_fake"}),
        (["model", "list", "--help"], {"model_sheet"}),
    ],
    ids=lambda it: " ".join(it) if isinstance(it, list) else "",
)
def test_a_command_of_a_group_does_not_import_its_siblings(arguments, siblings):
    assert not imported_by(*arguments) & {f"phasewise.cli.{name}" for name in siblings}


def test_every_command_can_be_called_by_its_name():
    group = get_command(app)
    assert [group.get_command(None, name).name for name in COMMANDS] == list(COMMANDS)
    assert group.get_command(None, "none") is None


def test_help_lists_every_command_in_its_panel_and_in_one_line(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    lines = CliRunner().invoke(app, ["--help"]).output.splitlines()
    listed = [line.split()[1] for line in lines if line.startswith("│ ")]
    assert [name for name in listed if name in COMMANDS] == list(COMMANDS)
    titles = [line.split("─")[1].strip() for line in lines if line.startswith("╭")]
    assert titles == ["Options", *PANELS]


def test_a_misspelled_command_is_guessed():
    assert "diagnose" in CliRunner().invoke(app, ["dignose"]).output
    assert "calibrate" in CliRunner().invoke(app, ["engine", "calibrat"]).output


def completed(words):
    """The environment in which a shell asks for what may follow these words."""
    return {
        "_PHASEWISE_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("phasewise ", list(COMMANDS)),
        ("phasewise engine ", ["install", "check", "calibrate", "validate", "fake"]),
        ("phasewise engine ca", ["calibrate"]),
        ("phasewise up --n", ["--name", "--no-engine-keys"]),
    ],
)
def test_a_shell_completes_commands_and_options(words, offered):
    runner = CliRunner()
    shown = runner.invoke(app, [], prog_name="phasewise", env=completed(words)).output
    assert shown.split() == offered


def test_completing_a_command_imports_none():
    assert imported_by(**completed("phasewise engine ")) == OWN


def test_completion_is_installed_for_a_shell(tmp_path):
    # A shell is named here because there is none to detect.
    environment = {"HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    command = [sys.executable, "-m", "phasewise.cli", "--install-completion", "bash"]
    subprocess.run(command, env={**os.environ, **environment}, check=True, capture_output=True)
    assert ".bash_completions" in (tmp_path / ".bashrc").read_text()


def test_the_version_in_full_names_what_a_report_of_a_fault_needs(tmp_path, monkeypatch):
    monkeypatch.setenv("PHASEWISE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("PHASEWISE_ENGINE_PYTHON", raising=False)
    for order in (["--version", "--verbose"], ["--verbose", "--version"]):
        shown = CliRunner().invoke(app, order).output
        assert f"data folder    {tmp_path}" in shown
        assert "step recorder  not installed: phasewise engine install" in shown
        assert [line.split("  ")[0] for line in shown.splitlines()] == [
            *("phasewise", "Python", "data folder", "vLLM", "step recorder")
        ]


def test_verbose_alone_and_no_command_are_wrong_usage():
    assert CliRunner().invoke(app, ["--verbose"]).exit_code == 2
    assert CliRunner().invoke(app, ["--"]).exit_code == 2
