"""Checks a client's body by the table of fields, and builds the body for the engine.

Where the gateway lends rights, engine controls are rejected by name: some reach other tenants' cache or make
the engine fetch a URL. Unknown fields are left out. Where it lends none, all of them are passed on. The
engine checks the values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import field
from typing import Any

import orjson

from phasewise.core.errors import RequestRejected
from phasewise.core.request import WITH_KNOWN_FIELDS, Endpoint
from phasewise.core.request_fields import (
    CLOSED_BECAUSE,
    FIELDS_ON,
    INSTEAD,
    PROMPT_FIELD,
    RequestField,
    fields_where,
)
from phasewise.core.value import value
from phasewise.gateway.api.body_checks import (
    DEEPEST,
    LARGEST_NUMBER,
    bad_request,
    check_depth,
    check_items,
    check_json_bounds,
    check_media,
    check_tools,
    check_transfer,
    may_name_transfer,
    tools_in,
)
from phasewise.gateway.api.reading_process import Weight
from phasewise.gateway.api.schemas import check_schemas

# Looking up a member of an enum is slow.
_CHAT, _RESPONSES = Endpoint.CHAT, Endpoint.RESPONSES
ANTHROPICS = frozenset({Endpoint.MESSAGES, Endpoint.COUNT_TOKENS})
SEVERAL_PROMPTS = frozenset({Endpoint.COMPLETIONS, Endpoint.EMBEDDINGS})
"""Where a list holds prompts; elsewhere it holds the turns of one conversation."""
MODEL_NAME_LIMIT = 256
REQUEST_ID = re.compile(rb"[A-Za-z0-9_.:-]{1,64}")

ALLOWED_FIELDS = {on: frozenset(fields_where(lambda row: row.is_passed_on, on)) for on in Endpoint}
IGNORED_FIELDS = {on: frozenset(fields_where(lambda row: row.type == "ignored", on)) for on in Endpoint}
"""Fields that cannot change the answer. Where rights are lent they are removed and named in the response."""
ENGINE_CONTROLS = frozenset(fields_where(lambda row: row.type in {"closed", "gateway", "never"}))
"""Fields that the engine knows, and that clients may not set where rights are lent."""
_GATEWAYS = frozenset(fields_where(lambda row: row.type == "gateway"))

KEEPS_WHOLE = frozenset(fields_where(lambda row: row.prefill == "whole"))
"""The fields that prevent disaggregation: they ask for output about the prompt itself, or change it."""

# fmt: off
_RENDERER_CONTROLS = frozenset(
    {
        "tokenize", "conversation", "padding", "truncation", "max_length", "return_tensors", "return_dict",
        "return_assistant_tokens_mask", "tokenizer_kwargs",
    }
)
# fmt: on
TEMPLATE_CONTROLS = ENGINE_CONTROLS | _RENDERER_CONTROLS
"""What chat_template_kwargs may not hold: engines pass it to the function that renders the prompt, so it
would set that function's own parameters too."""

COUNT_FIELDS = fields_where(lambda row: row.type == "count")
MOST_OUTPUT_TOKENS = 2**31
"""No answer is longer; a larger limit would only let one request dominate every sum."""
MOST_CHOICES = 128
"""Each is a sequence in the engine, while the request takes one slot of the worker and of its key."""

MOST_EMBEDDED = 2048
"""Texts in one embeddings request, as in OpenAI's API. Each is a sequence too, but without a decode phase."""

_USAGE_WANTED = b',"stream_options":{"include_usage":true}}'
_NOT_STORED = b',"store":false}'
_NUMBERS = frozenset({int, float})
_COUNTS = frozenset(COUNT_FIELDS)
_MOST_SHOWN, _NAME_SHOWN = 32, 64
_NOT_IN_NAMES = re.compile(r"[^\w.:-]", re.ASCII)


@value
class _EndpointRules:
    """What applies at one endpoint, looked up once per request.

    Streams of completions report usage if they are asked to; only completions can be disaggregated. Where a
    list holds `several` prompts it is no conversation, whose turns have `parts` under these names.
    """

    allowed: frozenset[str]
    ignored: frozenset[str]
    objects: frozenset[str]
    schemas: frozenset[str]
    generates: bool
    is_completion: bool
    prompt: str
    several: bool
    parts: tuple[str, ...]


_RULES = {
    on: _EndpointRules(
        allowed=ALLOWED_FIELDS[on],
        ignored=IGNORED_FIELDS[on],
        objects=frozenset(fields_where(lambda row: row.type == "object", on)),
        schemas=frozenset(fields_where(lambda row: row.holds_schema, on)),
        generates=on.generates,
        is_completion=on.is_completion,
        prompt=PROMPT_FIELD[on],
        several=on in SEVERAL_PROMPTS,
        parts=("content", "output") if on is Endpoint.RESPONSES else ("content",),
    )
    for on in WITH_KNOWN_FIELDS
}


@value
class Parsed:
    """A request's body: what the gateway needs of it, and the bytes for the engine.

    `hide_usage`: the gateway asked for the usage chunk, not the client. `splittable`: it may be
    disaggregated. `media_bytes` are images and audio beyond MEDIUM_AS_TEXT_BYTES each. `fields` is the parsed
    body without those that cannot change the answer; `ignored` are those that the engine does not get. Of a
    body that another process has read there is only the beginning of its `text`. `model` is empty if the
    engine is to judge what the client named. `takes_salt`: it is a JSON object with at least one
    field.
    """

    model: str
    stream: bool
    max_output_tokens: int | None
    hide_usage: bool
    upstream_body: bytes
    choices: int = 1
    splittable: bool = False
    media_bytes: int = 0
    fields: dict[str, Any] = field(default_factory=dict)
    text: bytes | None = None
    ignored: tuple[str, ...] = ()
    takes_salt: bool = True


def parse_body(
    endpoint: Endpoint,
    body: bytes,
    *,
    lends_rights: bool = True,
    passes_unknown: bool = False,
    judge: Callable[[Weight], None] | None = None,
) -> Parsed:
    """Check a body's fields; raises RequestRejected. With `passes_unknown` engines get unknown ones too.

    `judge` is given the body's weight before its checks, and may raise.
    """
    fields = object_in(body)
    values = _check_depth(fields, body)
    rules = _RULES[endpoint]
    transfer = may_name_transfer(body)
    if judge is not None:
        # In Anthropic's protocol messages bring tools too.
        plain = fields.keys() <= rules.allowed and rules.schemas.isdisjoint(fields) and not transfer
        judge(Weight.of(endpoint, body, values, with_schemas=not plain or endpoint in ANTHROPICS))
    if transfer:
        check_transfer(fields)
        # Of fields given twice only the last was looked at.
        body = orjson.dumps(fields)
    ignored: tuple[str, ...] = ()
    extra: set[str] = set()
    if not fields.keys() <= rules.allowed:
        ignored = _take_out(endpoint, fields, lends_rights=lends_rights, passes_unknown=passes_unknown)
        extra = fields.keys() - rules.allowed - rules.ignored
        if ignored:
            body = orjson.dumps(fields)
        # Nobody knows what an engine does with them.
        check_schemas(fields, body, extra)
    _check_values(_without(rules.ignored, fields), rules.objects)
    if not rules.schemas.isdisjoint(fields):
        check_schemas(fields, body, sorted(rules.schemas))
    only_text, media_bytes = True, 0
    if not rules.several:
        only_text, media_bytes = _check_conversation(endpoint, rules, fields, body, lends_rights=lends_rights)
    model = _model(fields, lends_rights=lends_rights)
    stream = fields.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise bad_request("stream must be true or false", "stream")
    hide_usage, upstream_body = False, body
    if stream and rules.is_completion:
        hide_usage, upstream_body = _ask_for_usage(fields, body)
    if lends_rights and endpoint is _RESPONSES:
        upstream_body = _not_stored(body)
    choices = _choices(rules, fields)
    return Parsed(
        model=model,
        stream=bool(stream),
        max_output_tokens=_output_limit(endpoint, fields) if rules.generates else 0,
        hide_usage=hide_usage,
        upstream_body=upstream_body,
        choices=choices,
        # Untested kinds stay whole. An unknown field may define the prompt, and so do some controls.
        splittable=rules.is_completion
        and choices == 1
        and only_text
        and not extra
        and not _keeps_whole(fields),
        media_bytes=media_bytes,
        fields=_without(rules.ignored, fields),
        ignored=ignored,
    )


def request_id_from(value: bytes | None) -> str | None:
    """The client's own request id, if it is valid."""
    return value.decode() if value is not None and REQUEST_ID.fullmatch(value) else None


def object_in(body: bytes) -> dict[str, Any]:
    """The JSON object that a body is; raises RequestRejected."""
    check_json_bounds(body)
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise bad_request("the body is not JSON") from None
    if not isinstance(fields, dict):
        raise bad_request("the body is not a JSON object")
    return fields


def _take_out(
    endpoint: Endpoint, fields: dict[str, Any], *, lends_rights: bool, passes_unknown: bool
) -> tuple[str, ...]:
    """Take out what the engine does not get, by name."""
    if not lends_rights:
        left_out = tuple(_GATEWAYS & fields.keys())
    else:
        extra = [name for name in fields if name not in ALLOWED_FIELDS[endpoint]]
        left_out = tuple(name for name in extra if _is_left_out(endpoint, name, fields[name], passes_unknown))
    for name in left_out:
        del fields[name]
    return left_out


def _is_left_out(endpoint: Endpoint, name: str, given: object, passes_unknown: bool) -> bool:
    row = FIELDS_ON[endpoint].get(name)
    if name in ENGINE_CONTROLS and given is not None:
        raise _closed(name, name)
    if row is not None and row.type == "unsupported" and given not in row.off:
        raise _unsupported(row)
    return row is not None or not passes_unknown


def _without(names: frozenset[str], fields: dict[str, Any]) -> dict[str, Any]:
    if names.isdisjoint(fields):
        return fields
    return {name: value for name, value in fields.items() if name not in names}


def _model(fields: dict[str, Any], *, lends_rights: bool) -> str:
    model = fields.get("model")
    if isinstance(model, str) and 0 < len(model) <= MODEL_NAME_LIMIT:
        return model
    if lends_rights:
        raise no_model()
    return ""


def shown_names(names: tuple[str, ...]) -> bytes:
    """Names of fields for a header. Clients chose them: many, long, and of any characters."""
    shown = [_NOT_IN_NAMES.sub("?", name[:_NAME_SHOWN]) for name in names[:_MOST_SHOWN]]
    return ", ".join([*shown, *(["..."] if len(names) > _MOST_SHOWN else [])]).encode()


def _not_stored(body: bytes) -> bytes:
    # An engine that stores responses would show them to whoever knows or guesses an id.
    return body.rstrip()[:-1] + _NOT_STORED


def _ask_for_usage(fields: dict[str, Any], body: bytes) -> tuple[bool, bytes]:
    options = fields.get("stream_options")
    if "stream_options" not in fields:
        # Spliced in before the closing brace, so that a long prompt is not serialized again.
        return True, body.rstrip()[:-1] + _USAGE_WANTED
    if options is not None and options.get("include_usage") is True:
        return False, body
    # Without include_usage the engine would have ignored every other option, so none is kept.
    return True, orjson.dumps({**fields, "stream_options": {"include_usage": True}})


def _check_depth(fields: dict[str, Any], body: bytes) -> int:
    """About how many values it has."""
    # Most bodies have fewer brackets than allowed levels and need no check. In long bodies counting the
    # brackets takes longer than the check.
    if len(body) < 4096 and body.count(b"[") + body.count(b"{") <= DEEPEST:
        return body.count(b",")
    return check_depth(fields)


def _check_values(fields: dict[str, Any], objects: frozenset[str]) -> None:
    for name, given in fields.items():
        kind = type(given)
        if name in objects:
            if kind is dict:
                _check_numbers(name, given.values())
            elif given is not None:
                raise bad_request(f"{name} must be an object", name)
        elif kind is list:
            _check_numbers(name, given)
        elif kind in _NUMBERS:
            _check_numbers(name, (given,))


def _check_numbers(name: str, values: Iterable[object]) -> None:
    for number in values:
        if (type(number) is int or type(number) is float) and abs(number) > LARGEST_NUMBER:
            raise bad_request(f"{name} is too large a number", name)


def _check_conversation(
    endpoint: Endpoint, rules: _EndpointRules, fields: dict[str, Any], body: bytes, *, lends_rights: bool
) -> tuple[bool, int]:
    if lends_rights and "chat_template_kwargs" in fields:
        _check_template_kwargs(fields["chat_template_kwargs"])
    if endpoint is _CHAT:
        pass
    elif endpoint is _RESPONSES:
        if lends_rights:
            check_tools(fields.get("tools"))
        check_items(fields.get("input"))
    elif tools := list(tools_in(fields.get("messages"))):
        check_schemas({"tool": tools}, body, ("tool",))
    return check_media(fields.get(rules.prompt), rules.prompt, rules.parts, lends_rights=lends_rights)


def _keeps_whole(fields: dict[str, Any]) -> bool:
    return not KEEPS_WHOLE.isdisjoint(fields) and any(
        fields[name] is not None and fields[name] is not False for name in KEEPS_WHOLE & fields.keys()
    )


def _check_template_kwargs(kwargs: object) -> None:
    if isinstance(kwargs, dict) and not TEMPLATE_CONTROLS.isdisjoint(kwargs):
        name = next(name for name in kwargs if name in TEMPLATE_CONTROLS)
        raise _closed(name, f"chat_template_kwargs.{name}")


def _output_limit(endpoint: Endpoint, fields: dict[str, Any]) -> int | None:
    first = "max_output_tokens" if endpoint is _RESPONSES else "max_completion_tokens"
    for limit in (fields.get(first), fields.get("max_tokens")):
        if isinstance(limit, int) and limit > 0:
            return min(limit, MOST_OUTPUT_TOKENS)
    return None


def _choices(rules: _EndpointRules, fields: dict[str, Any]) -> int:
    """How many sequences are computed: the larger of `n` and `best_of`, for each prompt or input."""
    if not rules.several and _COUNTS.isdisjoint(fields):
        return 1
    each, param = 1, rules.prompt
    most = MOST_CHOICES if rules.generates else MOST_EMBEDDED
    for name in COUNT_FIELDS:
        count = fields.get(name)
        if count is not None and type(count) is not int:
            # Engines accept "1000" and 1000.0 too.
            raise bad_request(f"{name} must be a whole number", name)
        if count is not None and count > each:
            each, param = count, name
    choices, prompts = each, fields.get(rules.prompt) if rules.several else None
    if isinstance(prompts, list) and prompts and not isinstance(prompts[0], int):
        choices *= len(prompts)
    if choices > most:
        raise bad_request(
            f"the request asks for {choices} answers; at most {most} are allowed",
            param,
            hint="send several requests",
        )
    return choices


def _unsupported(row: RequestField) -> RequestRejected:
    return bad_request(
        f"{row.name} would change the answer, and no engine here can do what it asks for",
        row.name,
        hint=INSTEAD.get(row.name, "leave it out"),
    )


def _closed(name: str, place: str) -> RequestRejected:
    why = CLOSED_BECAUSE.get(name, "it controls the engine")
    return bad_request(
        f"{place} is closed: {why}, and here clients or engines have keys",
        place,
        hint="leave it out",
    )


def no_model() -> RequestRejected:
    """The body names no model, and it is not clear which one it is for."""
    return bad_request("model must be the name of a model", "model")
