"""What a model's config.json says of how engines compute it."""

import json

import pytest

from phasewise.fleet.engines.model_config_file import computed_in_bf16, served_model

ROUNDED = {"quantization_config": {"quant_method": "compressed-tensors"}}


@pytest.mark.parametrize(
    ("config", "in_bf16"),
    [
        ({"dtype": "bfloat16"}, True),
        ({"torch_dtype": "bfloat16"}, True),
        ({"torch_dtype": "float32"}, True),
        ({}, True),
        ({"dtype": None, "quantization_config": None}, True),
        ({"dtype": "float16"}, False),
        ({"text_config": {"torch_dtype": "float16"}}, False),
        ({"text_config": {"torch_dtype": "bfloat16"}}, True),
        ({"dtype": "bfloat16", **ROUNDED}, False),
        ({"dtype": "bfloat16", "text_config": ROUNDED}, False),
    ],
)
def test_the_engine_computes_in_bfloat16_unless_the_model_says_otherwise(config, in_bf16):
    assert computed_in_bf16(config) is in_bf16


def test_a_model_is_served_from_its_folder_by_what_its_config_says(tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"dtype": "bfloat16"}))
    served = served_model(str(tmp_path), tmp_path, {})
    assert (served.source, served.is_folder, served.in_bf16) == (str(tmp_path), True, True)
    config.write_text(json.dumps({"dtype": "bfloat16", **ROUNDED}))
    assert served_model(str(tmp_path), tmp_path, {}).in_bf16 is False


def test_of_a_model_that_is_not_here_yet_nothing_is_known(tmp_path):
    served = served_model("org/name", tmp_path, {"HF_HOME": str(tmp_path)})
    assert (served.source, served.is_folder, served.in_bf16) == ("org/name", False, False)
