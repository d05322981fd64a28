"""Timelines carry marks of the prompt's beginning, from where the prompt begins, and of its text."""

from phasewise.core.request import Endpoint
from phasewise.fake_engine.fleet import running_engines
from phasewise.gateway.api.prompt_prefix import prompt_bytes
from tests.core.test_text_marks import prose
from tests.gateway.harness import request_id_of, running_gateway


def test_what_stands_before_the_prompt_does_not_count():
    one = prompt_bytes(Endpoint.CHAT, b'{"model":"a","messages":[{"role":"user"}]}')
    other = prompt_bytes(Endpoint.CHAT, b'{"model":"b","user":"u7","messages":[{"role":"user"}]}')
    assert one == other


def test_a_completion_begins_at_its_prompt():
    assert prompt_bytes(Endpoint.COMPLETIONS, b'{"prompt":"x"}') == b'"prompt":"x"}'


async def test_a_text_behind_another_head_is_recognised_by_its_text_alone():
    text = prose(1).decode()
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        replies = [await gateway.chat(f"It is {day} today. {text}") for day in ("Monday", "Wednesday")]
        one, other = [await gateway.timeline(request_id_of(reply)) for reply in replies]
    assert set(one["marks"]).isdisjoint(other["marks"])
    assert one["text"] == other["text"]
