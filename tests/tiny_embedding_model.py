"""A real ONNX model of a few hundred bytes: the mean of its words' vectors. It needs no package but our own.

Texts of the same words are equal to it and those without a common word nearly at right angles, which is
enough to try all that is done with vectors.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

DIMENSIONS = 16
UNKNOWN = "[UNK]"
_FLOAT, _INT64 = 1, 7
_VARINT, _BYTES = 0, 2


def write_tiny_model(folder: Path, words: tuple[str, ...], inputs=("input_ids", "attention_mask")) -> Path:
    """A folder with model.onnx and tokenizer.json that knows these words."""
    folder.mkdir(parents=True, exist_ok=True)
    table = np.random.default_rng(7).standard_normal((len(words) + 1, DIMENSIONS)).astype("<f4")
    (folder / "model.onnx").write_bytes(_model(table, inputs))
    vocabulary = {UNKNOWN: 0} | {word: place for place, word in enumerate(words, 1)}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
        "normalizer": {"type": "Lowercase"}, "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": UNKNOWN},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def _model(table: np.ndarray, inputs: tuple[str, ...]) -> bytes:
    gather = _text(1, "table") + _text(1, "input_ids") + _text(2, "hidden") + _text(4, "Gather")
    tensor = b"".join(_number(1, size) for size in table.shape) + _number(2, _FLOAT)
    tensor += _text(8, "table") + _field(9, table.tobytes())
    graph = _field(1, gather) + _text(2, "tiny") + _field(5, tensor)
    graph += b"".join(_field(11, _value(name, _INT64, ("batch", "sequence"))) for name in inputs)
    graph += _field(12, _value("hidden", _FLOAT, ("batch", "sequence", DIMENSIONS)))
    return _number(1, 8) + _field(7, graph) + _field(8, _text(1, "") + _number(2, 17))


def _value(name: str, kind: int, shape: tuple[str | int, ...]) -> bytes:
    sizes = (_text(2, size) if isinstance(size, str) else _number(1, size) for size in shape)
    tensor = _number(1, kind) + _field(2, b"".join(_field(1, size) for size in sizes))
    return _text(1, name) + _field(2, _field(1, tensor))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3 | _VARINT) + _varint(value)


def _field(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | _BYTES) + _varint(len(data)) + data


def _text(field: int, text: str) -> bytes:
    return _field(field, text.encode())
