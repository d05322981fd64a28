"""A report shows the command that made it, and keeps its keys to itself."""

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from phasewise.cli.app import app
from phasewise.cli.measuring import command_line


def options_of(command):
    if isinstance(command, TyperGroup):
        children = (command.get_command(None, name) for name in command.list_commands(None))
        return {option for child in children for option in options_of(child)}
    return {option for parameter in command.params for option in parameter.opts}


KEY_OPTIONS = sorted(option for option in options_of(get_command(app)) if option.endswith("key"))


def test_the_options_that_take_keys_are_found():
    assert {"--api-key", "--admin-key"} <= set(KEY_OPTIONS)


@pytest.mark.parametrize("option", KEY_OPTIONS)
@pytest.mark.parametrize("joined", [True, False])
def test_a_key_is_not_reported_however_it_is_given(option, joined):
    given = [f"{option}=hidden=secret"] if joined else [option, "hidden"]
    shown = command_line(["bench", "http://e", *given, "--rate", "2"])
    assert "hidden" not in shown
    assert "secret" not in shown
    assert option in shown
    assert shown.endswith("--rate 2")


def test_a_file_of_keys_is_no_key():
    assert command_line(["gateway", "--api-key-file", "keys.txt"]).endswith("keys.txt")
