"""Calls that OpenAI's and Anthropic's own clients make at a gateway, each of which checks its answer."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import anthropic
import openai

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"text": {"type": "string", "maxLength": 8}},
    "required": ["text"],
    "additionalProperties": False,
}
TURN: list[Any] = [{"role": "user", "content": "Note something short."}]
NOTE: dict[str, Any] = {"name": "note", "description": "Notes a text.", "strict": True}
CHAT_TOOL: Any = {"type": "function", "function": {**NOTE, "parameters": SCHEMA}}
RESPONSES_TOOL: Any = {"type": "function", **NOTE, "parameters": SCHEMA}
MESSAGES_TOOL: Any = {**NOTE, "input_schema": SCHEMA}
"""Strict, so that even a small model calls them with the right arguments."""
FEW = 8
ENOUGH = 96
"""Tokens: enough for the arguments of a call."""


@dataclass(frozen=True, slots=True)
class Clients:
    """Both clients of one gateway, and the model they ask for."""

    openai: openai.AsyncOpenAI
    anthropic: anthropic.AsyncAnthropic
    model: str


Call = Callable[[Clients], Awaitable[None]]


NOBODYS = {"kv_transfer_params": {"do_remote_prefill": True}}
"""What no client may send."""


async def rejection_of(asked: Awaitable[Any]) -> Exception:
    """The error that a client raises."""
    try:
        await asked
    except (openai.APIStatusError, anthropic.APIStatusError) as error:
        return error
    raise AssertionError("it was accepted")


# --- OpenAI's -----------------------------------------------------------------------------------------------


async def lists_models(it: Clients) -> None:
    """The model is in the list, and by itself."""
    assert it.model in [model.id async for model in it.openai.models.list()]
    assert (await it.openai.models.retrieve(it.model)).id == it.model


async def chats(it: Clients) -> None:
    """A plain chat."""
    done = await it.openai.chat.completions.create(model=it.model, messages=TURN, max_completion_tokens=FEW)
    assert done.choices[0].message.content
    assert done.usage is not None
    assert 0 < done.usage.completion_tokens <= FEW


async def streams_a_chat(it: Clients) -> None:
    """A streamed chat with its usage."""
    stream = await it.openai.chat.completions.create(
        model=it.model, messages=TURN, max_tokens=FEW, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert chunks[-1].usage is not None


async def chats_with_a_tool(it: Clients) -> None:
    """A plain chat whose answer calls a tool."""
    done = await it.openai.chat.completions.create(
        model=it.model, messages=TURN, max_tokens=ENOUGH, tools=[CHAT_TOOL], tool_choice="required"
    )
    called = (done.choices[0].message.tool_calls or [])[0]
    assert called.type == "function"
    assert called.function.name == "note"
    assert set(json.loads(called.function.arguments)) == {"text"}


async def streams_a_chat_with_a_tool(it: Clients) -> None:
    """A streamed chat whose answer calls a tool."""
    stream = await it.openai.chat.completions.create(
        model=it.model,
        messages=TURN,
        max_tokens=ENOUGH,
        tools=[CHAT_TOOL],
        tool_choice="required",
        stream=True,
    )
    deltas = [
        call.function
        async for chunk in stream
        for choice in chunk.choices
        for call in choice.delta.tool_calls or ()
        if call.function is not None
    ]
    assert [delta.name for delta in deltas if delta.name] == ["note"]
    assert set(json.loads("".join(delta.arguments or "" for delta in deltas))) == {"text"}


async def completes(it: Clients) -> None:
    """A plain completion."""
    done = await it.openai.completions.create(model=it.model, prompt="Once upon a time", max_tokens=FEW)
    assert done.choices[0].text


async def streams_a_completion(it: Clients) -> None:
    """A streamed completion."""
    stream = await it.openai.completions.create(
        model=it.model, prompt="Once upon a time", max_tokens=FEW, stream=True
    )
    assert "".join([chunk.choices[0].text async for chunk in stream if chunk.choices])


async def embeds(it: Clients) -> None:
    """Embeddings of two texts."""
    done = await it.openai.embeddings.create(model=it.model, input=["a", "b"])
    assert len(done.data) == 2
    assert done.data[0].embedding


async def responds(it: Clients) -> None:
    """A plain response."""
    done = await it.openai.responses.create(
        model=it.model, input="Say hi.", instructions="Be brief.", max_output_tokens=FEW
    )
    assert done.output_text
    assert done.usage is not None
    assert 0 < done.usage.output_tokens <= FEW


async def streams_a_response(it: Clients) -> None:
    """A streamed response, whose pieces are its text."""
    stream = await it.openai.responses.create(
        model=it.model, input=TURN, max_output_tokens=FEW, stream=True, store=False
    )
    events = [event async for event in stream]
    pieces = [event.delta for event in events if event.type == "response.output_text.delta"]
    last = events[-1]
    assert last.type == "response.completed"
    assert "".join(pieces) == last.response.output_text
    assert last.response.usage is not None


async def responds_with_a_tool(it: Clients) -> None:
    """A plain response that calls a tool."""
    done = await it.openai.responses.create(
        model=it.model,
        input=TURN,
        max_output_tokens=ENOUGH,
        tools=[RESPONSES_TOOL],
        tool_choice={"type": "function", "name": "note"},
    )
    called = done.output[-1]
    assert called.type == "function_call"
    assert (called.name, set(json.loads(called.arguments))) == ("note", {"text"})


async def streams_a_response_with_a_tool(it: Clients) -> None:
    """A streamed response that calls a tool."""
    stream = await it.openai.responses.create(
        model=it.model,
        input=TURN,
        max_output_tokens=ENOUGH,
        tools=[RESPONSES_TOOL],
        tool_choice="required",
        stream=True,
    )
    events = [event async for event in stream]
    pieces = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert set(json.loads("".join(pieces))) == {"text"}
    assert events[-1].type == "response.completed"


async def continues_a_response_by_hand(it: Clients) -> None:
    """A second turn that carries the first one, with the result of a tool."""
    done = await it.openai.responses.create(
        model=it.model,
        input=[
            *TURN,
            {"type": "function_call", "call_id": "c1", "name": "note", "arguments": '{"text":"a"}'},
            {"type": "function_call_output", "call_id": "c1", "output": "noted"},
        ],
        max_output_tokens=FEW,
    )
    assert done.output_text


async def gets_openais_errors(it: Clients) -> None:
    """Errors as the client's own classes, with words."""
    closed = it.openai.responses.create(model=it.model, input="x", extra_body=NOBODYS)
    bad = await rejection_of(closed)
    assert isinstance(bad, openai.BadRequestError)
    assert "kv_transfer_params" in str(bad)
    missing = await rejection_of(it.openai.models.retrieve("nobody-serves-this"))
    assert isinstance(missing, openai.NotFoundError)
    assert "no worker serves" in str(missing)


# --- Anthropic's --------------------------------------------------------------------------------------------


async def messages(it: Clients) -> None:
    """A plain message."""
    done = await it.anthropic.messages.create(
        model=it.model, messages=TURN, system="Be brief.", max_tokens=FEW, metadata={"user_id": "u"}
    )
    assert done.content[0].type == "text"
    assert done.content[0].text
    assert 0 < done.usage.output_tokens <= FEW


async def streams_a_message(it: Clients) -> None:
    """A streamed message, put together by the client."""
    async with it.anthropic.messages.stream(model=it.model, messages=TURN, max_tokens=FEW) as stream:
        pieces = [text async for text in stream.text_stream]
        done = await stream.get_final_message()
    assert done.content[0].type == "text"
    assert "".join(pieces) == done.content[0].text != ""
    assert done.stop_reason in {"max_tokens", "end_turn"}
    assert done.usage.output_tokens > 0


async def messages_with_a_tool(it: Clients) -> None:
    """A plain message that calls a tool."""
    done = await it.anthropic.messages.create(
        model=it.model,
        messages=TURN,
        max_tokens=ENOUGH,
        tools=[MESSAGES_TOOL],
        tool_choice={"type": "tool", "name": "note"},
    )
    called = done.content[-1]
    assert called.type == "tool_use"
    assert (called.name, set(called.input)) == ("note", {"text"})
    assert done.stop_reason == "tool_use"


async def streams_a_message_with_a_tool(it: Clients) -> None:
    """A streamed message that calls a tool, put together by the client."""
    async with it.anthropic.messages.stream(
        model=it.model, messages=TURN, max_tokens=ENOUGH, tools=[MESSAGES_TOOL], tool_choice={"type": "any"}
    ) as stream:
        done = await stream.get_final_message()
    called = done.content[-1]
    assert called.type == "tool_use"
    assert (called.name, set(called.input)) == ("note", {"text"})


async def continues_with_a_tools_result(it: Clients) -> None:
    """A second turn with the result of a tool."""
    done = await it.anthropic.messages.create(
        model=it.model,
        messages=[
            *TURN,
            {
                "role": "assistant",
                "content": [
                    {"type": "tool_use", "id": "t1", "name": "note", "input": {"url": "https://a.example"}}
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "ok"}]}
                ],
            },
        ],
        max_tokens=FEW,
    )
    assert done.content


async def counts_tokens(it: Clients) -> None:
    """More words are more tokens."""
    short = await it.anthropic.messages.count_tokens(model=it.model, messages=TURN)
    long = await it.anthropic.messages.count_tokens(model=it.model, messages=TURN, system="Be brief. " * 20)
    assert 0 < short.input_tokens < long.input_tokens


async def gets_anthropics_errors(it: Clients) -> None:
    """Errors as the client's own classes, in its shape and with words."""
    asked: Any = {"messages": TURN, "max_tokens": FEW}
    missing = await rejection_of(it.anthropic.messages.create(model="nobody-serves-this", **asked))
    assert isinstance(missing, anthropic.NotFoundError)
    body: Any = missing.body
    assert (body["type"], body["error"]["type"]) == ("error", "not_found_error")
    closed = it.anthropic.messages.create(model=it.model, **asked, extra_body=NOBODYS)
    bad = await rejection_of(closed)
    assert isinstance(bad, anthropic.BadRequestError)
    assert "kv_transfer_params" in str(bad)


CALLS: tuple[Call, ...] = (
    lists_models,
    chats,
    streams_a_chat,
    chats_with_a_tool,
    streams_a_chat_with_a_tool,
    completes,
    streams_a_completion,
    embeds,
    responds,
    streams_a_response,
    responds_with_a_tool,
    streams_a_response_with_a_tool,
    continues_a_response_by_hand,
    gets_openais_errors,
    messages,
    streams_a_message,
    messages_with_a_tool,
    streams_a_message_with_a_tool,
    continues_with_a_tools_result,
    counts_tokens,
    gets_anthropics_errors,
)
NEEDS_EMBEDDINGS = frozenset({embeds})
"""What an engine of a model that generates does not serve."""
