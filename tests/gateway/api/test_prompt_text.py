"""What a request says, without the JSON around it, as far as marks look."""

import pytest

from phasewise.core.prefixes import TEXT_LIMIT_BYTES
from phasewise.core.request import Endpoint
from phasewise.gateway.api.prompt_prefix import prompt_text

LONG = "word " * 400


@pytest.mark.parametrize(
    ("endpoint", "fields", "text"),
    [
        (
            Endpoint.CHAT,
            {"messages": [{"role": "system", "content": "Be kind.\nAlways."}, {"content": "Grüezi"}]},
            "Be kind.\nAlways.\nGrüezi",
        ),
        (
            Endpoint.CHAT,
            {"messages": [{"content": [{"type": "text", "text": "What is it?"}, {"image_url": "data:,"}]}]},
            "What is it?",
        ),
        (Endpoint.COMPLETIONS, {"prompt": "Once"}, "Once"),
        (Endpoint.COMPLETIONS, {"prompt": ["Once", "Twice"]}, "Once\nTwice"),
        (Endpoint.COMPLETIONS, {"prompt": [1, 2, 3]}, ""),
        (Endpoint.CHAT, {"messages": [7, {"content": None}, {"content": [None, {"text": 7}]}]}, ""),
        (Endpoint.CHAT, {"messages": "no list"}, ""),
        (Endpoint.CHAT, {}, ""),
    ],
)
def test_only_what_is_said_counts(endpoint, fields, text):
    assert prompt_text(endpoint, fields) == text.encode()


def test_no_more_is_taken_than_is_ever_marked():
    turns = [{"content": "x" * 20_000}, {"content": "y" * 20_000}, {"content": "z"}]
    text = prompt_text(Endpoint.CHAT, {"messages": turns})
    assert TEXT_LIMIT_BYTES <= len(text) <= TEXT_LIMIT_BYTES + 1
    assert b"z" not in text
