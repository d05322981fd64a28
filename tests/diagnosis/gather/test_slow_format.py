"""The number format of a vLLM is read from its command line."""

import pytest

from phasewise.diagnosis.gather.host_watch import slow_format

SERVE = ["python", "-m", "vllm.entrypoints.cli.main", "serve", "m"]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ([], "bfloat16"),
        (["--dtype", "auto"], "bfloat16"),
        (["--dtype", "bfloat16"], "bfloat16"),
        (["--dtype=bfloat16"], "bfloat16"),
        (["--dtype", "float32"], None),
        (["--dtype=float32"], None),
        (["--dtype"], "bfloat16"),
    ],
)
def test_a_format_that_is_not_named_is_the_models(options, found):
    assert slow_format([*SERVE, *options]) == found


def test_another_program_has_none():
    assert slow_format(["python", "-m", "http.server"]) is None
    assert slow_format([]) is None
