"""Timelines carry marks of the prompt's beginning, from where the prompt begins."""

from phasewise.gateway.fields import prompt_bytes
from phasewise.model.request import Endpoint


def test_what_stands_before_the_prompt_does_not_count():
    one = prompt_bytes(Endpoint.CHAT, b'{"model":"a","messages":[{"role":"user"}]}')
    other = prompt_bytes(Endpoint.CHAT, b'{"model":"b","user":"u7","messages":[{"role":"user"}]}')
    assert one == other


def test_a_completion_begins_at_its_prompt():
    assert prompt_bytes(Endpoint.COMPLETIONS, b'{"prompt":"x"}') == b'"prompt":"x"}'
