"""Runs the stages of an engine installation and records which are done, so that it can be resumed."""

from __future__ import annotations

import fcntl
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import phasewise
from phasewise.core.errors import EngineInstallFailed
from phasewise.core.units import gib
from phasewise.fleet.engines.command_output import TaskProgress, run_command
from phasewise.fleet.engines.recipe import (
    NEEDED_DISK_BYTES,
    Action,
    InstallStage,
    MakeEnvironment,
    Pip,
    WriteAlias,
    fingerprints,
    plan,
    plugin_stage,
)
from phasewise.fleet.local.placement import listed_gpus

NOTES_FOLDER = ".phasewise"
_PIP_QUIETLY = ("--no-input", "--disable-pip-version-check", "--progress-bar", "off")
_HINTS = (
    ("No space left", "free some disk space, then run the same command again: finished stages are kept"),
    (
        "No matching distribution",
        "your package index has no build for this Python and machine; try another Python",
    ),
    (
        "HASHES",
        "your package index or cache has another file than the one that was tried: do not install it; "
        "if the index is a mirror that rebuilds packages, use one that does not",
    ),
    ("externally-managed-environment", "name a virtual environment with --path"),
    ("No module named pip", "this environment has no pip; run its Python with `-m ensurepip` first"),
)
_RERUN_HINT = "read the log, then run the same command again: finished stages are kept"


@dataclass(frozen=True)
class Installation:
    """Where and with what an environment is created."""

    path: Path
    device: str
    log: Path

    @property
    def python(self) -> Path:
        return self.path / "bin" / "python"

    @property
    def notes(self) -> Path:
        return self.path / NOTES_FOLDER

    @property
    def stages(self) -> tuple[InstallStage, ...]:
        return plan(self.device, plugin_source())


def install(installation: Installation, progress: TaskProgress, *, reinstall: bool = False) -> bool:
    """Bring the environment to the recipe's state; False if it was there already."""
    _reject_foreign_folder(installation.path)
    _reject_full_disk(installation)
    with _one_at_a_time(installation.path):
        if reinstall and installation.path.exists():
            shutil.rmtree(installation.path)
        return _perform(installation, progress)


def install_plugin(python: Path, log: Path, progress: TaskProgress) -> None:
    """Install our plugin into an engine environment that phasewise did not create."""
    stage = plugin_stage(plugin_source())
    progress.started(1, 1, stage.title)
    for action in stage.actions:
        if isinstance(action, Pip):
            _run_pip(python, action.args, stage, log, progress)
    progress.finished("done")


def detect_device() -> str:
    """`cuda` if an NVIDIA driver lists a GPU, else `cpu`."""
    return "cuda" if listed_gpus() else "cpu"


def plugin_source() -> Path:
    """The plugin's project: inside the installed package, or next to the sources in a checkout."""
    package = Path(phasewise.__file__).parent
    for folder in (package / "_engine_plugin", package.parents[1] / "engine_plugin"):
        if (folder / "pyproject.toml").is_file():
            return folder
    raise EngineInstallFailed(
        f"the engine plugin is not next to {package}", hint="reinstall phasewise: its files are incomplete"
    )


def bundled_plugin_version() -> str:
    """The version of the plugin that an installation would install."""
    text = (plugin_source() / "phasewise_engine_plugin" / "__init__.py").read_text()
    found = re.search(r'__version__ = "([^"]+)"', text)
    return found.group(1) if found else "unknown"


def is_complete(installation: Installation) -> bool:
    """Whether every stage of the current recipe is done there."""
    wanted = fingerprints(installation.stages)
    return installation.python.exists() and _read_done(installation) == wanted


def _perform(installation: Installation, progress: TaskProgress) -> bool:
    stages = installation.stages
    wanted = fingerprints(stages)
    done = _read_done(installation) if installation.python.exists() else {}
    changed = False
    for number, stage in enumerate(stages, start=1):
        progress.started(number, len(stages), stage.title)
        if done.get(stage.name) == wanted[stage.name]:
            progress.finished("already there")
            continue
        for action in stage.actions:
            _act(action, stage, installation, progress)
        done[stage.name] = wanted[stage.name]
        _write_done(installation, done)
        changed = True
        progress.finished("done")
    return changed


def _act(action: Action, stage: InstallStage, installation: Installation, progress: TaskProgress) -> None:
    match action:
        case MakeEnvironment():
            # An interrupted run may have left a partial environment.
            shutil.rmtree(installation.path, ignore_errors=True)
            # The notes come first: they mark the folder as phasewise's own for a later run.
            installation.notes.mkdir(parents=True)
            command = [sys.executable, "-I", "-m", "venv", str(installation.path)]
            _run(command, stage, installation.log, progress)
        case Pip(args, otherwise):
            try:
                _run_pip(installation.python, args, stage, installation.log, progress)
            except EngineInstallFailed:
                if not otherwise:
                    raise
                _run_pip(installation.python, otherwise, stage, installation.log, progress)
        case WriteAlias(name, version, requires):
            where = "import sysconfig; print(sysconfig.get_path('purelib'))"
            answer = subprocess.run(  # noqa: S603 - the environment made above
                [str(installation.python), "-I", "-c", where], capture_output=True, text=True, check=True
            )
            _write_alias(Path(answer.stdout.strip()), name, version, requires)


def _run_pip(
    python: Path, args: Sequence[str], stage: InstallStage, log: Path, progress: TaskProgress
) -> None:
    # -I: ignores PYTHONPATH and the user's packages.
    verb, *rest = args
    _run([str(python), "-I", "-m", "pip", verb, *_PIP_QUIETLY, *rest], stage, log, progress)


def _run(command: Sequence[str], stage: InstallStage, log: Path, progress: TaskProgress) -> None:
    try:
        run_command(command, f"installing {stage.title}", log, progress, _RERUN_HINT, _HINTS)
    except OSError as error:
        raise EngineInstallFailed(
            f"installing {stage.title} failed: {command[0]} cannot be run ({error.strerror})",
            hint="run with --reinstall to start again",
        ) from None


def _write_alias(site_packages: Path, name: str, version: str, requires: str) -> None:
    for older in site_packages.glob(f"{name}-*.dist-info"):
        shutil.rmtree(older)
    folder = site_packages / f"{name}-{version}.dist-info"
    folder.mkdir()
    contents = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Dist: {requires}\n"
        f"Summary: Only a name for {requires}\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: phasewise\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "INSTALLER": "phasewise\n",
    }
    for file_name, text in contents.items():
        (folder / file_name).write_text(text)
    names = [f"{folder.name}/{file_name},," for file_name in (*contents, "RECORD")]
    (folder / "RECORD").write_text("\n".join(names) + "\n")


def _read_done(installation: Installation) -> dict[str, str]:
    try:
        done = json.loads((installation.notes / "stages.json").read_text())
    except (OSError, ValueError):
        return {}
    return {str(name): str(value) for name, value in done.items()} if isinstance(done, dict) else {}


def _write_done(installation: Installation, done: dict[str, str]) -> None:
    installation.notes.mkdir(parents=True, exist_ok=True)
    partial = installation.notes / "stages.json.partial"
    partial.write_text(json.dumps(done, indent=2) + "\n")
    partial.replace(installation.notes / "stages.json")


def _reject_foreign_folder(path: Path) -> None:
    if not path.exists() or not any(path.iterdir()):
        return
    if not (path / NOTES_FOLDER).is_dir() and not (path / "pyvenv.cfg").is_file():
        raise EngineInstallFailed(
            f"{path} has files that are not an engine environment", hint="name an empty folder with --path"
        )
    if not (path / NOTES_FOLDER).is_dir():
        raise EngineInstallFailed(
            f"{path} is an environment that phasewise did not create",
            hint="name another folder with --path, or add only the plugin with --plugin-only",
        )


def _reject_full_disk(installation: Installation) -> None:
    if is_complete(installation):
        return
    existing = next(folder for folder in (installation.path, *installation.path.parents) if folder.exists())
    free_bytes, needed_bytes = shutil.disk_usage(existing).free, NEEDED_DISK_BYTES[installation.device]
    if free_bytes < needed_bytes:
        raise EngineInstallFailed(
            f"{existing} has {gib(free_bytes)} free, an engine needs {gib(needed_bytes)}",
            hint="free some space, or install elsewhere with --path",
        )


@contextmanager
def _one_at_a_time(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with (path.parent / f".{path.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise EngineInstallFailed(
                f"another installation into {path} is running", hint="wait for it to end, then run this again"
            ) from None
        yield
