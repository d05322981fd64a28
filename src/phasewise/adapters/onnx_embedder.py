"""Embeds texts with an ONNX model in a thread of its own, one at a time.

Which folder holds the model is embedding_folder.py's to say; deadlines are the caller's.
"""

from __future__ import annotations

import asyncio
import hashlib
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phasewise.adapters.embedding_folder import MODEL_FILE, TOKENIZER_FILE
from phasewise.adapters.unit_vector import BYTES_PER_NUMBER, space_name, unit_vector
from phasewise.errors import ConfigError, EmbedderBusy, EmbedderUnreachable
from phasewise.model.caching import Vector

READS_TOKENS = 256
"""What the known model was trained to read; of a longer text only the beginning counts."""
MOST_WAITING = 8
"""Texts taken in at once. Each takes some 7 ms: whoever waited for more would have no time to search."""
_FEEDS = frozenset({"input_ids", "attention_mask", "token_type_ids"})
_ERRORS_ONLY = 3


class OnnxEmbedder:
    """An embedder in this process; its space is the folder's name and the model file's digest.

    One text at a time, never several in a batch: on one thread eight together take three quarters of the
    time that they take by turns, and all eight would wait for the end of it.
    """

    def __init__(self, folder: Path, most_waiting: int = MOST_WAITING) -> None:
        self._folder = folder
        self._runtime = _needed("onnxruntime")
        self._tokenizers = _needed("tokenizers")
        self._space = space_name(folder.name, _digest(folder / MODEL_FILE))
        self._most_waiting = most_waiting
        self._waiting = 0
        self._closed = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="embedder")
        self._session: Any = None
        self._tokenizer: Any = None
        self._feeds: frozenset[str] = frozenset()
        self._dimensions = 0

    @property
    def space(self) -> str:
        """The model's name and the beginning of its file's digest."""
        return self._space

    @property
    def dimensions(self) -> int:
        """How many numbers a vector holds; 0 before the start."""
        return self._dimensions

    async def start(self) -> None:
        """Load the model and try it, which also warms it up."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._load)
        self._dimensions = len(await self.embed("warm")) // BYTES_PER_NUMBER

    async def embed(self, text: str) -> Vector:
        """The text's vector. Who is cancelled while others are computed costs nothing any more."""
        if self._closed or self._session is None:
            raise EmbedderUnreachable("the embedder is not running")
        if self._waiting >= self._most_waiting:
            raise EmbedderBusy(f"{self._waiting} texts wait to be embedded already")
        self._waiting += 1
        try:
            # Cancelling takes a text that has not begun out of the thread's line.
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._compute, text)
        except EmbedderUnreachable:
            raise
        except Exception as error:
            # The runtime's message may quote what it was given.
            raise EmbedderUnreachable(f"the embedding model failed ({type(error).__name__})") from None
        finally:
            self._waiting -= 1

    async def close(self) -> None:
        """End the thread; what still waits in its line is told that nothing will come."""
        self._closed = True
        await asyncio.to_thread(self._thread.shutdown)

    def _load(self) -> None:
        options = self._runtime.SessionOptions()
        # The other cores are the engines'. More threads would make short texts only slightly faster.
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = _ERRORS_ONLY
        try:
            tokenizer = self._tokenizers.Tokenizer.from_file(str(self._folder / TOKENIZER_FILE))
            session = self._runtime.InferenceSession(
                str(self._folder / MODEL_FILE), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            # Both libraries raise errors of no common kind for a file they cannot read.
            raise ConfigError(
                f"{self._folder} holds no model that can be loaded ({type(error).__name__})",
                hint=f"it needs {MODEL_FILE} and {TOKENIZER_FILE} of one model; fetch them again",
            ) from None
        feeds = frozenset(it.name for it in session.get_inputs())
        if not {"input_ids", "attention_mask"} <= feeds <= _FEEDS:
            raise ConfigError(
                f"{self._folder / MODEL_FILE} embeds no texts: it wants {', '.join(sorted(feeds))}",
                hint="export a sentence-transformers model: input_ids, attention_mask, token_type_ids",
            )
        tokenizer.no_padding()
        tokenizer.enable_truncation(READS_TOKENS)
        self._tokenizer, self._feeds, self._session = tokenizer, feeds, session

    def _compute(self, text: str) -> Vector:
        if self._closed:
            raise EmbedderUnreachable("the embedder is not running")
        encoded = self._tokenizer.encode(text)
        mask = np.array([encoded.attention_mask], np.int64)
        given = {
            "input_ids": np.array([encoded.ids], np.int64),
            "attention_mask": mask,
            "token_type_ids": np.zeros_like(mask),
        }
        output = self._session.run(None, {name: given[name] for name in self._feeds})[0]
        return unit_vector(_pooled(output, mask))


def _pooled(output: NDArray[Any], mask: NDArray[np.int64]) -> NDArray[Any]:
    """The mean over the tokens, where the model has not pooled them itself."""
    if output.ndim == 2:
        return np.asarray(output[0])
    return np.asarray((output[0] * mask[0][:, None]).sum(axis=0) / mask.sum())


def _needed(package: str) -> ModuleType:
    try:
        return import_module(package)
    except ImportError:
        raise ConfigError(
            f"an embedding model on this machine needs the package {package}, which is not installed",
            hint="pip install 'phasewise[semantic]'",
        ) from None


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read ({error.strerror})", hint="name a folder with an embedding model in it"
        ) from None
