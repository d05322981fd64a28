"""Which fields a client may set, and the body that goes to the engine.

Unknown fields and the engine's own controls are refused by name: some of them reach other hosts' memory or
other tenants' cache, or make the engine fetch what a client names. What allowed fields mean, and whether
their values make sense, is the engine's to say.
"""

from __future__ import annotations

import re
from dataclasses import field
from typing import Any

import orjson

from phasewise.errors import RefusalKind, RequestRefused
from phasewise.gateway.hand_over_bodies import splittable
from phasewise.gateway.prompt_text import prompt_text
from phasewise.gateway.schemas import check_schemas
from phasewise.model.noun import noun
from phasewise.model.prefix_marks import MARK_SIZES_BYTES, TEXT_FROM_BYTES
from phasewise.model.request import Endpoint

MODEL_NAME_LIMIT = 256
REQUEST_ID = re.compile(rb"[A-Za-z0-9_-]{1,64}")

# fmt: off
_COMMON = frozenset(
    {
        # OpenAI's
        "model", "frequency_penalty", "logit_bias", "logprobs", "max_tokens", "n", "presence_penalty",
        "response_format", "seed", "stop", "stream", "stream_options", "temperature", "top_p", "user",
        # vLLM's sampling
        "top_k", "min_p", "repetition_penalty", "length_penalty", "min_tokens", "ignore_eos",
        "stop_token_ids", "bad_words", "include_stop_str_in_output", "skip_special_tokens",
        "spaces_between_special_tokens", "allowed_token_ids", "prompt_logprobs", "logprob_token_ids",
        "return_tokens_as_token_ids", "truncate_prompt_tokens", "truncation_side", "use_beam_search",
        "add_special_tokens", "echo", "repetition_detection", "thinking_token_budget",
        # structured outputs, by their present and their former names
        "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
        "guided_decoding_backend", "guided_whitespace_pattern",
    }
)
_CHAT = frozenset(
    {
        "messages", "max_completion_tokens", "top_logprobs", "tools", "tool_choice",
        "parallel_tool_calls", "reasoning_effort", "include_reasoning", "add_generation_prompt",
        "continue_final_message", "documents", "chat_template_kwargs",
    }
)
# fmt: on
_COMPLETIONS = frozenset({"prompt", "suffix", "best_of"})
_EMBEDDINGS = frozenset(
    {
        "model", "input", "encoding_format", "dimensions", "user",
        # vLLM's
        "truncate_prompt_tokens", "truncation_side", "add_special_tokens",
    }
)  # fmt: skip

ALLOWED_FIELDS: dict[Endpoint, frozenset[str]] = {
    Endpoint.CHAT: _COMMON | _CHAT,
    Endpoint.COMPLETIONS: _COMMON | _COMPLETIONS,
    Endpoint.EMBEDDINGS: _EMBEDDINGS,
}
# fmt: off
ENGINE_CONTROLS = frozenset(
    {
        "kv_transfer_params", "ec_transfer_params", "cache_salt", "priority", "return_token_ids",
        "request_id", "session_id", "prompt_embeds", "vllm_xargs", "chat_template",
        "mm_processor_kwargs", "media_io_kwargs", "mm_payload", "return_mm_kwargs", "return_prompt_text",
        "return_token_offsets", "routed_experts_prompt_start", "stream_interval", "watermarking", "padding",
    }
)
# fmt: on
"""Fields the engine knows and clients may not set; listed only to say so more clearly."""

# fmt: off
_RENDERER_CONTROLS = frozenset(
    {
        "tokenize", "conversation", "padding", "truncation", "max_length", "return_tensors", "return_dict",
        "return_assistant_tokens_mask", "tokenizer_kwargs",
    }
)
# fmt: on
TEMPLATE_CONTROLS = ENGINE_CONTROLS | _RENDERER_CONTROLS
"""What chat_template_kwargs may not hold: engines hand it to the function that renders the prompt, whose own
parameters it would then set, and not only to the template."""

DEEPEST = 64
"""How deep a body may be nested. Engines walk through schemas and messages by functions that call themselves,
and what is too deep for one of those is an error of theirs, which looks as if the worker were ill."""
OBJECT_FIELDS = frozenset(
    {
        "logit_bias", "response_format", "stream_options", "structured_outputs", "chat_template_kwargs",
        "repetition_detection",
    }
)  # fmt: skip
LARGEST_NUMBER = 2**63 - 1
"""Whether values make sense is the engine's to say, but for what it answers with an error of its own: vLLM
0.32 does so where structured_outputs is no object and where a number does not fit. A client's mistake must
not look like an ill worker."""
MOST_OUTPUT_TOKENS = 2**31
"""No answer is longer: a larger limit would only make one request outweigh all others in every sum."""
MOST_CHOICES = 128
"""Each is a sequence that an engine runs, while the request takes one slot and one of its key's places."""

MEDIUM_AS_TEXT_BYTES = 4096
"""What a picture or a recording counts for at most: engines make some hundred to a few thousand tokens of
one, and how many does not go by its bytes."""

_TEXT_PART = frozenset({"type", "text"})
_PROMPT_FIELD = {
    Endpoint.CHAT: b'"messages"',
    Endpoint.COMPLETIONS: b'"prompt"',
    Endpoint.EMBEDDINGS: b'"input"',
}
_USAGE_WANTED = b',"stream_options":{"include_usage":true}}'


@noun
class Parsed:
    """A request's body: what the gateway needs of it, and the bytes for the engine.

    `hide_usage` holds where the usage chunk was asked for by the gateway and not by the client. `text` is as
    much of the prompt's text as is ever marked, left empty in a short body. Whether it is `splittable` is
    hand_over_bodies.py's to say. `media_bytes` of the body are pictures and sound beyond
    MEDIUM_AS_TEXT_BYTES each. `fields` is the body as it was read, so that nobody reads it again.
    """

    model: str
    stream: bool
    max_output_tokens: int | None
    hide_usage: bool
    upstream_body: bytes
    choices: int = 1
    text: bytes = b""
    splittable: bool = False
    media_bytes: int = 0
    fields: dict[str, Any] = field(default_factory=dict)


def parse_body(endpoint: Endpoint, body: bytes) -> Parsed:
    """Check a body's fields; raises RequestRefused."""
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise _bad("the body is not JSON") from None
    if not isinstance(fields, dict):
        raise _bad("the body is not a JSON object")
    if not fields.keys() <= ALLOWED_FIELDS[endpoint]:
        raise _refused_field(next(name for name in fields if name not in ALLOWED_FIELDS[endpoint]))
    _check_depth(fields, body)
    _check_values(fields)
    check_schemas(fields, body)
    media_bytes = 0
    if endpoint is Endpoint.CHAT:
        _check_template_kwargs(fields.get("chat_template_kwargs"))
        media_bytes = _check_media(fields.get("messages"))
    model = fields.get("model")
    if not isinstance(model, str) or not 0 < len(model) <= MODEL_NAME_LIMIT:
        raise _bad("model must be the name of a model", "model")
    stream = fields.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise _bad("stream must be true or false", "stream")
    hide_usage, upstream_body = _ask_for_usage(fields, body) if stream else (False, body)
    choices = _choices(fields)
    return Parsed(
        model=model,
        stream=bool(stream),
        max_output_tokens=_output_limit(fields) if endpoint.generates else 0,
        hide_usage=hide_usage,
        upstream_body=upstream_body,
        choices=choices,
        text=b"" if len(body) < TEXT_FROM_BYTES else prompt_text(endpoint, fields),
        splittable=splittable(endpoint, fields, choices),
        media_bytes=media_bytes,
        fields=fields,
    )


def prompt_bytes(endpoint: Endpoint, body: bytes) -> bytes:
    """As much of the body as is ever marked, from where its prompt begins."""
    start = max(body.find(_PROMPT_FIELD[endpoint]), 0)
    return body[start : start + MARK_SIZES_BYTES[-1]]


def request_id_from(value: bytes | None) -> str | None:
    """A client's own name for its request, if it is one that may be kept and sent back."""
    return value.decode() if value is not None and REQUEST_ID.fullmatch(value) else None


def _ask_for_usage(fields: dict[str, Any], body: bytes) -> tuple[bool, bytes]:
    options = fields.get("stream_options")
    if "stream_options" not in fields:
        # Spliced in before the closing brace: a long prompt is not written out anew for one small field.
        return True, body.rstrip()[:-1] + _USAGE_WANTED
    if options is not None and options.get("include_usage") is True:
        return False, body
    # Without include_usage the engine would have ignored every other option, so none is kept.
    return True, orjson.dumps({**fields, "stream_options": {"include_usage": True}})


def _check_depth(fields: dict[str, Any], body: bytes) -> None:
    # Most bodies have fewer brackets than they may have levels: nothing has to be looked at. In long ones
    # counting takes longer than looking.
    if len(body) < 4096 and body.count(b"[") + body.count(b"{") <= DEEPEST:
        return
    level: list[Any] = [fields]
    for _ in range(DEEPEST):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) is dict or type(inner) is list
        ]
        if not level:
            return
    raise _bad(f"the body is nested more than {DEEPEST} deep")


def _check_values(fields: dict[str, Any]) -> None:
    for name, value in fields.items():
        kind = type(value)
        if name in OBJECT_FIELDS:
            if kind is dict:
                for inner in value.values():
                    _check_number(name, inner)
            elif value is not None:
                raise _bad(f"{name} must be an object", name)
        else:
            _check_number(name, value)


def _check_number(name: str, value: object) -> None:
    if (type(value) is int or type(value) is float) and abs(value) > LARGEST_NUMBER:
        raise _bad(f"{name} is too large a number", name)


def _check_template_kwargs(kwargs: object) -> None:
    if isinstance(kwargs, dict) and not TEMPLATE_CONTROLS.isdisjoint(kwargs):
        name = next(name for name in kwargs if name in TEMPLATE_CONTROLS)
        raise _refused_control(f"chat_template_kwargs.{name}")


def _check_media(messages: object) -> int:
    """Refuse parts that name an address, or something in the engine's cache, and parts that are tensors.

    An address the engine would fetch from within its own network; what is in its cache may be another
    tenant's. Looked for in what was parsed, not in the bytes, where an escaped letter could hide it.
    Returns how many bytes of the others are not to be taken for text.
    """
    if not isinstance(messages, list):
        return 0
    media_bytes = 0
    for place, message in enumerate(messages):
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            for index, part in enumerate(content):
                if isinstance(part, dict) and not part.keys() <= _TEXT_PART:
                    media_bytes += _check_part(part, f"messages[{place}].content[{index}]")
    return media_bytes


def _check_part(part: dict[str, Any], place: str) -> int:
    # By the fields, whatever the part says its type is: engines go by the fields where there is no type.
    media_bytes = 0
    for name, value in part.items():
        param = f"{place}.{name[:64]}"
        if name == "uuid" or name.endswith("_embeds") or (name == "type" and str(value).endswith("_embeds")):
            raise _refused_control(param)
        if name == "input_audio" or name.endswith("url"):
            if not _is_inline(value):
                raise _bad(f"{param} is not a data: URL", param, hint="send the data itself as one")
            media_bytes += _beyond_its_tokens(value)
    return media_bytes


def _beyond_its_tokens(media: object) -> int:
    held = media.values() if isinstance(media, dict) else (media,)
    data_bytes = sum(len(it) for it in held if isinstance(it, str))
    return max(0, data_bytes - MEDIUM_AS_TEXT_BYTES)


def _is_inline(media: object) -> bool:
    url = media.get("url") if isinstance(media, dict) else media
    return url is None or (isinstance(url, str) and url[:5].lower() == "data:")


def _output_limit(fields: dict[str, Any]) -> int | None:
    for name in ("max_completion_tokens", "max_tokens"):
        limit = fields.get(name)
        if isinstance(limit, int) and limit > 0:
            return min(limit, MOST_OUTPUT_TOKENS)
    return None


def _choices(fields: dict[str, Any]) -> int:
    """How many answers are computed: the larger of `n` and `best_of`, for each prompt."""
    each, param = 1, "prompt"
    for name in ("n", "best_of"):
        count = fields.get(name)
        if count is not None and type(count) is not int:
            # Engines would take "1000" and 1000.0 for numbers too.
            raise _bad(f"{name} must be a whole number", name)
        if count is not None and count > each:
            each, param = count, name
    choices, prompts = each, fields.get("prompt")
    if isinstance(prompts, list) and prompts and not isinstance(prompts[0], int):
        choices *= len(prompts)
    if choices > MOST_CHOICES:
        raise _bad(
            f"{choices} answers are asked for, and {MOST_CHOICES} are the most that one request may",
            param,
            hint="send several requests",
        )
    return choices


def _refused_field(name: str) -> RequestRefused:
    shown = name[:64]
    if name in ENGINE_CONTROLS:
        return _refused_control(shown)
    return _bad(f"{shown!r} is not a field of this endpoint", shown)


def _refused_control(name: str) -> RequestRefused:
    return _bad(f"{name} is set by the gateway, not by clients", name)


def _bad(message: str, param: str | None = None, hint: str | None = None) -> RequestRefused:
    return RequestRefused(RefusalKind.BAD_REQUEST, message, param=param, hint=hint)
