"""The data folder follows the environment."""

from pathlib import Path

from phasewise.fleet.config import phasewise_home
from phasewise.fleet.local.run_files import engine_folder


def test_own_variable_wins_over_the_desktop_convention():
    assert phasewise_home({"PHASEWISE_HOME": "/data/pw", "XDG_DATA_HOME": "/xdg"}) == Path("/data/pw")
    assert phasewise_home({"XDG_DATA_HOME": "/xdg"}) == Path("/xdg/phasewise")


def test_without_variables_it_is_in_the_users_home():
    assert phasewise_home({}) == Path.home() / ".local/share/phasewise"
    assert engine_folder(phasewise_home({})).name == "engine"
