"""Embeds texts: with an ONNX model in a thread of its own, or with a server of OpenAI's /v1/embeddings.

A malformed reply is an error. Callers set deadlines.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from phasewise.clients.embedding_folder import MODEL_FILE, TOKENIZER_FILE
from phasewise.clients.http_client import Access, HttpClient, Reply, Timeouts, origin
from phasewise.clients.key_file import read_key
from phasewise.core.caching import Vector
from phasewise.core.errors import (
    ConfigError,
    EmbedderBusy,
    EmbedderRejected,
    EmbedderUnreachable,
    UpstreamError,
)

# --- What both share: the form in which a vector is stored and compared, and a name for its space.

BYTES_PER_NUMBER = 4


def unit_vector(values: NDArray[np.floating[Any]]) -> Vector:
    """The direction of a vector; EmbedderUnreachable if it has none."""
    wide = values.astype(np.float64)
    # Divide by the largest number first: the squares of float32 values can overflow or underflow.
    largest = float(np.abs(wide).max(initial=0.0))
    if not np.isfinite(largest) or largest == 0.0:
        raise EmbedderUnreachable("the embedding model returned a zero or non-finite vector")
    wide /= largest
    return (wide / np.linalg.norm(wide)).astype("<f4").tobytes()


def space_name(model: str, digest: str) -> str:
    """A model's name in letters, digits and hyphens, then the start of a digest that makes it unique."""
    readable = re.sub(r"[^A-Za-z0-9]+", "-", model).strip("-") or "model"
    return f"{readable}-{digest[:8]}"


# --- A model on this machine.

READS_TOKENS = 256
"""What the known model was trained to read; of a longer text only the beginning counts."""
MOST_WAITING = 8
"""The most waiting texts. Each takes about 7 ms: behind more, a request has no time left to search."""
_FEEDS = frozenset({"input_ids", "attention_mask", "token_type_ids"})
_ERRORS_ONLY = 3


class OnnxEmbedder:
    """An embedder in this process; its space is the folder's name and the model file's digest.

    It embeds one text at a time, not in batches: on one thread, eight in a batch take three quarters of the
    time of eight in sequence, and all eight wait for the whole batch.
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
        """The text's vector. A cancelled call that has not started costs nothing."""
        if self._closed or self._session is None:
            raise EmbedderUnreachable("the embedder is not running")
        if self._waiting >= self._most_waiting:
            raise EmbedderBusy(f"{self._waiting} texts are waiting to be embedded already")
        self._waiting += 1
        try:
            # Cancelling removes a text that has not started from the thread's queue.
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._compute, text)
        except EmbedderUnreachable:
            raise
        except Exception as error:
            # The runtime's message may quote its input.
            raise EmbedderUnreachable(f"the embedding model failed ({type(error).__name__})") from None
        finally:
            self._waiting -= 1

    async def close(self) -> None:
        """End the thread; queued calls fail."""
        self._closed = True
        await asyncio.to_thread(self._thread.shutdown)

    def _load(self) -> None:
        options = self._runtime.SessionOptions()
        # The other cores belong to the engines. More threads would make short texts only slightly faster.
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = _ERRORS_ONLY
        try:
            tokenizer = self._tokenizers.Tokenizer.from_file(str(self._folder / TOKENIZER_FILE))
            session = self._runtime.InferenceSession(
                str(self._folder / MODEL_FILE), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            # The errors of the two libraries for an unreadable file share no base class.
            raise ConfigError(
                f"{self._folder} has no model that can be loaded ({type(error).__name__})",
                hint=f"it needs {MODEL_FILE} and {TOKENIZER_FILE} of one model; fetch them again",
            ) from None
        feeds = frozenset(given.name for given in session.get_inputs())
        if not {"input_ids", "attention_mask"} <= feeds <= _FEEDS:
            raise ConfigError(
                f"{self._folder / MODEL_FILE} does not embed text: its inputs are {', '.join(sorted(feeds))}",
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
    """The mean over the tokens, unless the model has pooled them itself."""
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
            f"{path} cannot be read ({error.strerror})", hint="give a folder that holds an embedding model"
        ) from None


# --- A server, over keep-alive connections.

MOST_UNDER_WAY = 64
"""Open requests at once; a server that needs more than this is too slow for every caller."""
_TIMEOUTS = Timeouts(connect_s=2.0, head_s=10.0, idle_s=10.0)
_MOST_DIMENSIONS = 16_384
_REJECTED_THE_TEXT = frozenset({400, 413, 422})


class HttpEmbedder:
    """An embedder behind HTTP; the model's name identifies its space, at any address."""

    def __init__(self, url: str, model: str, api_key_file: str | None = None) -> None:
        self._model = model
        key = None if api_key_file is None else read_key(Path(api_key_file), "the embedding server's key")
        self._client = HttpClient(origin(url), _TIMEOUTS, Access(key))
        self._dimensions = 0
        self._under_way = 0

    @property
    def space(self) -> str:
        """The model's name in a readable form, and a digest of its exact spelling."""
        return space_name(self._model, hashlib.sha256(self._model.encode()).hexdigest())

    @property
    def dimensions(self) -> int:
        """How many numbers a vector holds; 0 before the start."""
        return self._dimensions

    async def start(self) -> None:
        """Learn how many dimensions there are."""
        self._dimensions = len(await self._ask("warm"))

    async def embed(self, text: str) -> Vector:
        """The text's vector, of unit length whatever the server sends."""
        if self._under_way >= MOST_UNDER_WAY:
            raise EmbedderBusy(f"{self._under_way} texts are being embedded already")
        self._under_way += 1
        try:
            values = await self._ask(text)
        finally:
            self._under_way -= 1
        if len(values) != self._dimensions:
            raise EmbedderUnreachable(
                f"the embedding server returned {len(values)} numbers, but {self._dimensions} at the start",
                hint="it may serve another model now: restart the gateway",
            )
        return unit_vector(values)

    async def close(self) -> None:
        """Close the connections."""
        self._client.close()

    async def _ask(self, text: str) -> NDArray[np.float64]:
        body = orjson.dumps({"model": self._model, "input": text, "encoding_format": "float"})
        try:
            reply = await self._client.fetch("POST", "/v1/embeddings", body=body)
        except UpstreamError as error:
            raise EmbedderUnreachable(f"the embedding server does not answer: {error.message}") from None
        return _numbers(reply)


def _numbers(reply: Reply) -> NDArray[np.float64]:
    """The vector in a reply. Error messages of the server may quote the text, so they are not repeated."""
    if reply.status != 200:
        kind = EmbedderRejected if reply.status in _REJECTED_THE_TEXT else EmbedderUnreachable
        raise kind(f"the embedding server answered with HTTP {reply.status}", hint=_HINTS.get(reply.status))
    try:
        (entry,) = orjson.loads(reply.body)["data"]
        values = entry["embedding"]
        if not 0 < len(values) <= _MOST_DIMENSIONS:
            raise ValueError
        if not all(type(value) in (int, float) for value in values):
            raise ValueError
        return np.array(values, np.float64)
    except (ValueError, TypeError, LookupError, OverflowError):
        raise EmbedderUnreachable(
            "the embedding server's reply has no vector", hint="it must implement OpenAI's /v1/embeddings"
        ) from None


_HINTS = {
    401: "gateway.cache.semantic.embedder.api_key_file must hold a key that it accepts",
    403: "gateway.cache.semantic.embedder.api_key_file must hold a key that it accepts",
    404: "check the model's name in gateway.cache.semantic.embedder, and that its url has no /v1",
}
