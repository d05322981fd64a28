"""Requests on the wire: parsed, checked, and rejected in vLLM's words.

Fields that a fake engine does not use (temperature, stop, ...) are accepted and ignored. Of tools it uses
one whose call is demanded.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from phasewise.simulator import tokens
from phasewise.simulator.kv import Address, RemoteKv

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
MOST_CHOICES = 16_384

# --- `kv_transfer_params` as vLLM's NIXL connector reads and writes them.
#
# Unknown or incomplete ones are ignored, as in vLLM.


def remote_kv_of(params: object) -> RemoteKv | None:
    """Where this request's KV is, if another engine has computed its prompt."""
    if not isinstance(params, dict) or not params.get("do_remote_prefill"):
        return None
    named = [params.get(f"remote_{name}") for name in ("host", "port", "engine_id", "request_id")]
    groups = params.get("remote_block_ids")
    if None in named or not isinstance(groups, list) or not all(isinstance(group, list) for group in groups):
        return None
    host, port, engine_id, request_id = named
    cached_tokens = params.get("remote_prefill_cached_tokens")
    return RemoteKv(
        (str(host), int(str(port))),
        str(engine_id),
        str(request_id),
        tuple(block for group in groups for block in group),
        cached_tokens if isinstance(cached_tokens, int) else None,
    )


def kv_params(
    address: Address, engine_id: str, request_id: str, blocks: Sequence[int], tokens: int, cached_tokens: int
) -> dict[str, Any]:
    """Where a prompt's KV is, for another engine."""
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [list(blocks)],
        "remote_engine_id": engine_id,
        "remote_request_id": request_id,
        "remote_host": address[0],
        "remote_port": address[1],
        "tp_size": 1,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": tokens,
        "remote_blocks_expiry_time": None,
        "transfer_mode": "pull",
        "remote_prefill_cached_tokens": cached_tokens,
    }


# --- Messages to prompt text, in the ChatML form of the demo model; without tools and images.


def render_chat(messages: Sequence[Mapping[str, Any]], *, open_answer: bool, continue_final: bool) -> str:
    """The prompt; with `continue_final` the last message stays open, so that the answer continues it.

    Continuing an answer from its text gives the same tokens as generating it without a break.
    """
    turns = [f"<|im_start|>{message.get('role', 'user')}\n{_text_of(message)}" for message in messages]
    closed = "<|im_end|>\n".join(turns)
    if continue_final:
        return closed
    return closed + "<|im_end|>\n" + ("<|im_start|>assistant\n" if open_answer else "")


def _text_of(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text", "")) for part in content)


# --- /v1/responses and /v1/messages: their conversations become those of a chat.


def as_chat(path: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """The chat that a request to one of these addresses asks for."""
    taken = ("model", "stream", "cache_salt", "ignore_eos", "tools", "tool_choice")
    chat = {name: data[name] for name in taken if data.get(name) is not None}
    first = data.get("instructions" if path == RESPONSES else "system")
    turns = data.get("input" if path == RESPONSES else "messages")
    if isinstance(turns, str):
        turns = [{"role": "user", "content": turns}]
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise _invalid("list_type", "body", "Input should be a valid list")
    opening = [] if first is None else [{"role": "system", "content": first}]
    chat["messages"] = [*opening, *map(_message, turns)]
    chat["max_tokens"] = data.get("max_output_tokens" if path == RESPONSES else "max_tokens")
    return chat


def _message(turn: Mapping[str, Any]) -> dict[str, Any]:
    content = turn.get("content", turn.get("output", turn.get("arguments", "")))
    if isinstance(content, list):
        texts = (str(part.get("text", part.get("content", ""))) for part in content)
        content = [{"type": "text", "text": text} for text in texts]
    return {"role": turn.get("role", "tool"), "content": content}


def called_tool(data: Mapping[str, Any]) -> str | None:
    """The tool that the answer must call, if any."""
    choice, tools = data.get("tool_choice"), data.get("tools")
    if isinstance(choice, dict) and choice.get("type") in ("function", "tool"):
        return _name(choice)
    forced = choice == "required" or (isinstance(choice, dict) and choice.get("type") == "any")
    return _name(tools[0]) if forced and isinstance(tools, list) and tools else None


def _name(tool: object) -> str:
    held = tool.get("function", tool) if isinstance(tool, dict) else None
    return str(held.get("name")) if isinstance(held, dict) else ""


class BadRequest(Exception):
    """A request that vLLM would reject; carries the reply."""

    def __init__(self, message: str, kind: str, param: str | None, status: int) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": status}}


@dataclass(frozen=True, slots=True)
class GenerationCall:
    """A request for generation that has passed all checks. Its answer must call `tool`, if there is one.

    `top_logprobs` alternatives of each token are wanted; None: no log-probabilities at all.
    """

    request_id: str
    chat: bool
    prompt_text: str
    prompt_ids: tuple[int, ...]
    max_tokens: int
    min_tokens: int
    ignore_eos: bool
    cache_salt: str
    stream: bool
    include_usage: bool
    return_token_ids: bool
    keep_kv: bool = False
    remote_kv: RemoteKv | None = None
    tool: str | None = None
    choices: int = 1
    top_logprobs: int | None = None


def parse_json(body: bytes) -> dict[str, Any]:
    """The body as an object."""
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise _invalid("json_invalid", f"body.{error.pos}", "JSON decode error") from None
    if not isinstance(data, dict):
        raise _invalid("model_attributes_type", "body", "Input should be a valid dictionary")
    return data


def parse_call(
    path: str, body: bytes, *, client_request_id: str | None, model: str, max_model_len: int
) -> GenerationCall:
    """Read a request to one of the addresses that generate."""
    data, chat = parse_json(body), path != COMPLETIONS
    own_id = data.get("request_id") if path == RESPONSES else None
    if path in {RESPONSES, MESSAGES}:
        data = as_chat(path, data)
    _check_fields(data, chat)
    check_model(data, model)
    text, ids = prompt_of(data)
    options, params = data.get("stream_options") or {}, data.get("kv_transfer_params")
    return GenerationCall(
        request_id=own_id or ("chatcmpl-" if chat else "cmpl-") + (client_request_id or secrets.token_hex(8)),
        chat=chat,
        prompt_text=text,
        prompt_ids=ids,
        max_tokens=_max_tokens(data, chat, len(ids), max_model_len),
        min_tokens=int(data.get("min_tokens") or 0),
        ignore_eos=bool(data.get("ignore_eos")),
        cache_salt=str(data.get("cache_salt") or ""),
        stream=bool(data.get("stream")),
        include_usage=bool(options.get("include_usage")),
        return_token_ids=bool(data.get("return_token_ids")),
        keep_kv=isinstance(params, dict) and bool(params.get("do_remote_decode")),
        remote_kv=remote_kv_of(params),
        tool=called_tool(data),
        choices=data.get("n") or 1,
        top_logprobs=_top_logprobs(data, chat),
    )


def check_model(data: Mapping[str, Any], model: str) -> None:
    """Reject a model that is not served; a request may omit it."""
    wanted = data.get("model")
    if wanted is not None and wanted != model:
        raise BadRequest(
            f"The model `{wanted}` does not exist. Valid aliases: {model}.", "NotFoundError", "model", 404
        )


def prompt_of(data: Mapping[str, Any]) -> tuple[str, tuple[int, ...]]:
    """The prompt as text and as token ids, from `messages` or `prompt`."""
    if "messages" in data:
        text = _chat_text(data)
        return text, tuple(tokens.encode(text))
    prompt = data["prompt"]
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return prompt, tuple(tokens.encode(prompt))
    if not isinstance(prompt, list) or not all(isinstance(item, int) for item in prompt):
        raise _bad("prompt must be a string or a list of token ids (one prompt per request here)", "prompt")
    for token_id in prompt:
        if not 0 <= token_id < tokens.ID_LIMIT:
            raise _bad(f"Token id {token_id} is out of vocabulary", None)
    return tokens.decode(prompt), tuple(prompt)


def _chat_text(data: Mapping[str, Any]) -> str:
    continue_final = bool(data.get("continue_final_message"))
    open_answer = bool(data.get("add_generation_prompt", True))
    if continue_final and open_answer:
        raise _bad("continue_final_message and add_generation_prompt are not compatible.", None)
    messages = data["messages"]
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise _invalid("list_type", "body.messages", "Input should be a valid list")
    if not all(_is_content(message.get("content")) for message in messages):
        raise _invalid("string_type", "body.messages", "Input should be a valid string")
    if not messages:
        raise _bad("Cannot apply chat template to an empty conversation. Provide at least one message.", None)
    return render_chat(messages, open_answer=open_answer, continue_final=continue_final)


def _is_content(content: object) -> bool:
    if isinstance(content, list):
        return all(isinstance(part, dict) for part in content)
    return content is None or isinstance(content, str)


def _check_fields(data: Mapping[str, Any], chat: bool) -> None:
    field = "messages" if chat else "prompt"
    if field not in data:
        raise _invalid("missing", f"body.{field}", "Field required")
    for name in ("max_tokens", "max_completion_tokens", "min_tokens", "n", "top_logprobs"):
        if data.get(name) is not None and not isinstance(data[name], int):
            raise _invalid("int_type", f"body.{name}", "Input should be a valid integer")
    if (wanted := data.get("n")) is not None and not 1 <= wanted <= MOST_CHOICES:
        raise _bad(f"n must be at least 1 and at most {MOST_CHOICES}, got {wanted}.", "n")
    if data.get("stream_options") and not data.get("stream"):
        raise _bad(
            "Stream options can only be defined when `stream=True`. (parameter=stream_options)",
            "stream_options",
        )


def _top_logprobs(data: Mapping[str, Any], chat: bool) -> int | None:
    wanted = data.get("logprobs")
    if not chat:
        return wanted if type(wanted) is int and wanted >= 0 else None
    return max(0, data.get("top_logprobs") or 0) if wanted else None


def _max_tokens(data: Mapping[str, Any], chat: bool, prompt_tokens: int, max_model_len: int) -> int:
    if not prompt_tokens:
        raise _bad(
            "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)", "prompt"
        )
    if prompt_tokens > max_model_len:
        raise _bad(
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains "
            f"{prompt_tokens} input tokens, which exceeds this limit even without any output tokens. Please "
            f"reduce the length of the input prompt. (parameter=input_tokens, value={prompt_tokens})",
            "input_tokens",
        )
    wanted = data.get("max_completion_tokens") if chat else None
    if wanted is None:
        wanted = data.get("max_tokens")
    if wanted is None:
        # As in the OpenAI API, /v1/completions generates 16 tokens by default.
        wanted = max_model_len if chat else 16
    if wanted > max_model_len:
        raise _bad(
            f"max_tokens={wanted} cannot be greater than max_model_len={max_model_len}. Please request fewer "
            f"output tokens. (parameter=max_tokens, value={wanted})",
            "max_tokens",
        )
    # max_tokens that do not fit after the prompt are cut off silently.
    allowed = min(int(wanted), max_model_len - prompt_tokens)
    if allowed < 1:
        raise _bad(
            f"max_tokens must be at least 1, got {allowed}. (parameter=max_tokens, value={allowed})",
            "max_tokens",
        )
    return allowed


def _bad(message: str, param: str | None) -> BadRequest:
    return BadRequest(message, "BadRequestError", param, 400)


def _invalid(kind: str, place: str, message: str) -> BadRequest:
    text = f"1 validation error:\n  {{'type': '{kind}', 'loc': '{place}', 'msg': '{message}'}}"
    return BadRequest(text, "Bad Request", place, 400)
