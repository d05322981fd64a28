"""How many answers a request asks for is known before it is sent, and bounded."""

import orjson
import pytest

from phasewise.core.errors import RequestRejected
from phasewise.core.request import Endpoint
from phasewise.gateway.api.fields import MOST_CHOICES, parse_body


@pytest.mark.parametrize(
    ("fields", "choices"),
    [
        ({"prompt": "x"}, 1),
        ({"prompt": "x", "n": 3}, 3),
        ({"prompt": ["x", "y"]}, 2),
        ({"prompt": ["x", "y"], "n": 2}, 4),
        ({"prompt": [1, 2, 3]}, 1),
        ({"prompt": [[1, 2], [3]]}, 2),
        ({"prompt": "x", "best_of": 5}, 5),
        ({"prompt": ["x", "y"], "n": 2, "best_of": 5}, 10),
        ({"prompt": "x", "n": 6, "best_of": 5}, 6),
        ({"prompt": "x", "n": None, "best_of": None}, 1),
        ({"prompt": ["x"] * MOST_CHOICES}, MOST_CHOICES),
    ],
)
def test_choices_are_n_or_best_of_for_each_prompt(fields, choices):
    body = orjson.dumps({"model": "m", **fields})
    assert parse_body(Endpoint.COMPLETIONS, body).choices == choices


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": "x", "n": MOST_CHOICES + 1}, "n"),
        ({"prompt": "x", "n": 2**63}, "n"),
        ({"prompt": "x", "n": 2, "best_of": MOST_CHOICES + 1}, "best_of"),
        ({"prompt": ["x"] * (MOST_CHOICES + 1)}, "prompt"),
        ({"prompt": ["x", "y"], "n": MOST_CHOICES}, "n"),
        ({"prompt": "x", "n": "1000"}, "n"),
        ({"prompt": "x", "n": 1000.0}, "n"),
        ({"prompt": "x", "best_of": [1000]}, "best_of"),
        ({"prompt": "x", "n": True}, "n"),
    ],
)
def test_more_answers_than_one_request_may_ask_for_are_rejected_by_name(fields, param):
    body = orjson.dumps({"model": "m", **fields})
    with pytest.raises(RequestRejected) as rejected:
        parse_body(Endpoint.COMPLETIONS, body)
    assert rejected.value.param == param
