"""A tokenizer built like Llama 2's, of the library that engines use; run by the engine's own Python.

Reads a JSON value per line and answers each with one: of a text its tokens, of tokens what they spell.
"""

from __future__ import annotations

import json
import sys

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
LEARNED_FROM = [
    "Once upon a time there was a lighthouse. The keeper said: hello there, how are you?",
    "[INST] Say it [/INST] Hello! I am here.  Two spaces.",
    "    return x",
]
BYTES = [f"<0x{value:02X}>" for value in range(256)]


def built() -> Tokenizer:
    """As transformers builds it: a space before every text, and bytes for what is in no token."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    steps = [
        decoders.Replace(SPACE, " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
    tokenizer.decoder = decoders.Sequence(steps)
    # Words are split for learning only, so that no token spans two.
    tokenizer.pre_tokenizer = pre_tokenizers.Split(SPACE, "merged_with_next")
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=["<unk>", "<s>", *BYTES], show_progress=False
    )
    tokenizer.train_from_iterator(LEARNED_FROM * 20, trainer)
    tokenizer.pre_tokenizer = None
    return tokenizer


def main() -> None:
    """Answer until the input ends."""
    tokenizer = built()
    for line in sys.stdin:
        asked = json.loads(line)
        if isinstance(asked, str):
            reported = tokenizer.encode(asked, add_special_tokens=False)
            answer: object = [reported.ids, reported.tokens]
        else:
            answer = tokenizer.decode(asked, skip_special_tokens=False)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
