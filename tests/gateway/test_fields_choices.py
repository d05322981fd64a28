"""How many answers a request asks for is known before it is sent."""

import orjson
import pytest

from phasewise.gateway.fields import parse_body
from phasewise.model.request import Endpoint


@pytest.mark.parametrize(
    ("fields", "choices"),
    [
        ({"prompt": "x"}, 1),
        ({"prompt": "x", "n": 3}, 3),
        ({"prompt": ["x", "y"]}, 2),
        ({"prompt": ["x", "y"], "n": 2}, 4),
        ({"prompt": [1, 2, 3]}, 1),
        ({"prompt": [[1, 2], [3]]}, 2),
    ],
)
def test_choices_are_n_for_each_prompt(fields, choices):
    body = orjson.dumps({"model": "m", **fields})
    assert parse_body(Endpoint.COMPLETIONS, body).choices == choices
