"""An embedding model in this process: its vectors, and what becomes of texts when it cannot keep up."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import threading
from pathlib import Path

import numpy as np
import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise.clients import embedders
from phasewise.clients.embedders import READS_TOKENS, OnnxEmbedder, space_name, unit_vector
from phasewise.clients.embedding_folder import resolve_embedding_model
from phasewise.core.errors import ConfigError, EmbedderUnreachable
from tests.real_engine import ROOT
from tests.tiny_embedding_model import DIMENSIONS, write_tiny_model

WORDS = ("how", "do", "i", "reset", "my", "password", "where", "is", "paris")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny.model_v1", WORDS)


@contextlib.asynccontextmanager
async def started(folder, **options):
    embedder = OnnxEmbedder(folder, **options)
    await embedder.start()
    try:
        yield embedder
    finally:
        await embedder.close()


@contextlib.contextmanager
def busy(embedder):
    """The embedder's thread computes something until the block is left."""
    begun, done = threading.Event(), threading.Event()

    def work():
        begun.set()
        done.wait(10.0)

    embedder._thread.submit(work)
    assert begun.wait(10.0)
    try:
        yield
    finally:
        done.set()


def cosine(left, right):
    return float(np.frombuffer(left, "<f4") @ np.frombuffer(right, "<f4"))


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_same_words_are_near_and_others_are_not(folder, loop_factory):
    async def story():
        async with started(folder) as embedder:
            assert embedder.dimensions == DIMENSIONS
            first, shuffled, other = [
                await embedder.embed(text) for text in ("how do i reset", "Reset i do HOW", "where is paris")
            ]
        assert cosine(first, first) == pytest.approx(1.0, abs=1e-6)
        assert cosine(first, shuffled) == pytest.approx(1.0, abs=1e-6)
        assert cosine(first, other) < 0.9

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(story())


async def test_text_beyond_what_the_model_reads_does_not_count(folder):
    async with started(folder) as embedder:
        whole = " ".join(["how do"] * (READS_TOKENS // 2))
        assert await embedder.embed(whole) == await embedder.embed(whole + " where is paris" * 1000)


def test_the_space_is_the_folder_and_the_model_files_digest(folder, tmp_path):
    space = OnnxEmbedder(folder).space
    assert re.fullmatch(r"tiny-model-v1-[0-9a-f]{8}", space)
    other = write_tiny_model(tmp_path / folder.name, WORDS[:-1])
    assert OnnxEmbedder(other).space != space


async def test_a_flood_is_rejected_at_once(folder):
    async with started(folder, most_waiting=3) as embedder:
        with busy(embedder):
            taken = [asyncio.create_task(embedder.embed("how")) for _ in range(3)]
            await asyncio.sleep(0)
            with pytest.raises(EmbedderUnreachable, match="3 texts are waiting"):
                await embedder.embed("paris")
        assert len({*await asyncio.gather(*taken)}) == 1
        assert await embedder.embed("paris")


async def test_the_text_of_a_cancelled_caller_is_not_computed(folder, monkeypatch):
    async with started(folder, most_waiting=1) as embedder:
        computed = []
        compute = embedder._compute
        monkeypatch.setattr(embedder, "_compute", lambda text: [computed.append(text), compute(text)][1])
        with busy(embedder):
            leaver = asyncio.create_task(embedder.embed("paris"))
            await asyncio.sleep(0)
            leaver.cancel()
            await asyncio.gather(leaver, return_exceptions=True)
            stayer = asyncio.create_task(embedder.embed("how"))
            await asyncio.sleep(0)
        await stayer
        assert computed == ["how"]


async def test_closing_fails_waiting_calls_and_ends_the_thread(folder):
    embedder = OnnxEmbedder(folder)
    await embedder.start()
    with busy(embedder):
        waiting = asyncio.create_task(embedder.embed("how"))
        await asyncio.sleep(0)
        closing = asyncio.create_task(embedder.close())
        await asyncio.sleep(0)
    await closing
    for late in (waiting, embedder.embed("how")):
        with pytest.raises(EmbedderUnreachable, match="not running"):
            await late
    assert not any(thread.name.startswith("embedder") for thread in threading.enumerate())


async def test_nothing_is_embedded_before_the_start(folder):
    embedder = OnnxEmbedder(folder)
    with pytest.raises(EmbedderUnreachable, match="not running"):
        await embedder.embed("how")
    await embedder.close()


async def test_a_failing_model_does_not_quote_the_text(folder, monkeypatch):
    async with started(folder) as embedder:

        def fail(text):
            raise RuntimeError(f"cannot read {text}")

        monkeypatch.setattr(embedder, "_compute", fail)
        with pytest.raises(EmbedderUnreachable) as caught:
            await embedder.embed("my secret")
        assert str(caught.value) == "the embedding model failed (RuntimeError)"
        assert caught.value.__suppress_context__


def test_a_missing_package_says_what_to_install(folder, monkeypatch):
    def absent(name):
        raise ImportError(name)

    monkeypatch.setattr(embedders, "import_module", absent)
    with pytest.raises(ConfigError, match=r"hint: pip install 'phasewise\[semantic\]'"):
        OnnxEmbedder(folder)


def test_a_folder_without_a_model_is_rejected(tmp_path):
    with pytest.raises(ConfigError, match=r"model\.onnx cannot be read"):
        OnnxEmbedder(tmp_path)


@pytest.mark.parametrize("broken", ["model.onnx", "tokenizer.json"])
async def test_damaged_files_are_rejected_at_the_start(tmp_path, broken):
    folder = write_tiny_model(tmp_path / "tiny", WORDS)
    (folder / broken).write_bytes(b"{}")
    embedder = OnnxEmbedder(folder)
    with pytest.raises(ConfigError, match="has no model that can be loaded"):
        await embedder.start()
    await embedder.close()


async def test_a_model_of_another_kind_is_rejected_at_the_start(tmp_path):
    embedder = OnnxEmbedder(write_tiny_model(tmp_path / "tiny", WORDS, ("input_ids", "pixel_values")))
    with pytest.raises(ConfigError, match="its inputs are input_ids, pixel_values"):
        await embedder.start()
    await embedder.close()


@pytest.mark.real
async def test_the_fetched_model_puts_a_paraphrase_nearer_than_another_question():
    home = Path(os.environ.get("PHASEWISE_HOME") or ROOT / ".phasewise")
    async with started(resolve_embedding_model("minilm-l6", home)) as embedder:
        assert embedder.dimensions == 384
        asked, same, other = [
            await embedder.embed(text)
            for text in ("How do I reset my password?", "How can I reset my password?", "Where is Paris?")
        ]
    assert cosine(asked, same) > 0.95
    assert cosine(asked, other) < 0.3


FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(FINITE, min_size=1, max_size=8).filter(any))
@settings(max_examples=60)
def test_any_direction_has_unit_length(values):
    assert np.linalg.norm(np.frombuffer(unit_vector(np.array(values)), "<f4")) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("values", [[0.0, 0.0], [1.0, float("nan")], [float("inf"), 1.0], []])
def test_a_vector_without_direction_is_none(values):
    with pytest.raises(EmbedderUnreachable, match="zero or non-finite vector"):
        unit_vector(np.array(values, np.float64))


@given(st.text(max_size=20))
@settings(max_examples=60)
def test_a_space_is_named_in_letters_digits_and_hyphens(model):
    assert re.fullmatch(r"[A-Za-z0-9-]+-abcdef01", space_name(model, "abcdef0123"))
