"""Run by the engine's Python: families' default shapes, and their parameters as transformers has them."""

import json
import logging
import sys

logging.disable(logging.WARNING)

import torch  # noqa: E402
from transformers import CONFIG_MAPPING, AutoModelForCausalLM  # noqa: E402

MORE = {
    # What these families' own classes leave open.
    "deepseek_v2": {"num_experts_per_tok": 6, "n_routed_experts": 64, "first_k_dense_replace": 1},
    "dots1": {"n_routed_experts": 16, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "glm4_moe": {"head_dim": 128},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8},
}


def counted(family):
    config = CONFIG_MAPPING[family](**MORE.get(family, {}))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config.get_text_config())
    return {
        "config": config.to_dict(),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }


if __name__ == "__main__":
    json.dump({family: counted(family) for family in sys.argv[1:]}, sys.stdout)
