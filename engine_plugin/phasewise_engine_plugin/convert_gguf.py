"""Converts a GGUF file to an ordinary model folder; `phasewise model fetch` runs it as a script."""

from __future__ import annotations

import argparse
from pathlib import Path


def main() -> None:
    """Convert, then read the result back and ask it one question."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gguf", type=Path, help="the GGUF file")
    parser.add_argument("folder", type=Path, help="where to write the model")
    parser.add_argument("--ask", required=True, help="a prompt to try the result with")
    parser.add_argument("--expect", required=True, help="a word that must be in the greedy answer")
    arguments = parser.parse_args()
    print("reading the weights", flush=True)
    convert(arguments.gguf, arguments.folder)
    print("trying the converted model", flush=True)
    answer = answer_greedily(arguments.folder, arguments.ask)
    if arguments.expect not in answer:
        raise SystemExit(f"the converted model answers without {arguments.expect!r}")


def convert(gguf: Path, folder: Path) -> None:
    """Write weights in bfloat16, configuration and tokenizer with its chat template."""
    import torch  # noqa: PLC0415 - takes seconds
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig  # noqa: PLC0415

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    model = AutoModelForCausalLM.from_pretrained(
        **source,
        quantization_config=GgufConfig(gguf_file=gguf.name, dequantize=True),
        dtype=torch.bfloat16,
    )
    # The weights are no longer quantized, and their configuration must not say so.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    print("writing the model folder", flush=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def answer_greedily(folder: Path, question: str) -> str:
    """The first tokens of the model's answer through its chat template."""
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415 - takes seconds

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    output = model.generate(**prompt, max_new_tokens=12, do_sample=False)
    return str(tokenizer.decode(output[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True))


if __name__ == "__main__":
    main()
