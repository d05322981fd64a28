"""The two bodies of a request whose prompt is computed on another worker than its answer.

Pure. Sending them, and what is made of a worker that fails, is exchange.py's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from phasewise.model.hand_over import ASKS_TO_KEEP_KV
from phasewise.model.request import Endpoint

KV_PARAMS = "kv_transfer_params"

# fmt: off
DEFINES_PROMPT = frozenset(
    {
        "model", "messages", "prompt", "suffix", "tools", "documents", "cache_salt",
        "add_generation_prompt", "continue_final_message", "chat_template_kwargs", "add_special_tokens",
        # Some models' templates write these into the prompt; for all others they are without effect here.
        "tool_choice", "parallel_tool_calls", "reasoning_effort", "include_reasoning", "response_format",
    }
)
"""What the prefill worker is told: all that the engine could make the prompt's tokens of."""
DEFINES_ANSWER = frozenset(
    {
        "max_tokens", "max_completion_tokens", "min_tokens", "n", "best_of", "stream", "stream_options",
        "stop", "stop_token_ids", "ignore_eos", "include_stop_str_in_output", "seed", "temperature", "top_p",
        "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty", "length_penalty",
        "logit_bias", "bad_words", "allowed_token_ids", "logprobs", "top_logprobs", "logprob_token_ids",
        "return_tokens_as_token_ids", "skip_special_tokens", "spaces_between_special_tokens",
        "repetition_detection", "thinking_token_budget", "user", "structured_outputs", "guided_json",
        "guided_regex", "guided_choice", "guided_grammar", "guided_decoding_backend",
        "guided_whitespace_pattern",
    }
)
"""What it is not told: the one token that it writes is thrown away, and the decode worker writes it anew."""
KEEPS_WHOLE = frozenset(
    {
        "prompt_logprobs", "echo", "use_beam_search",
        # How much of a prompt is left depends on how long the answer may be, which the two bodies differ in.
        "truncate_prompt_tokens", "truncation_side",
    }
)
"""What makes a request unfit to be parted: it asks for something of the prompt itself, or changes it."""
# fmt: on

_KV_FIELD = b'"%b":' % KV_PARAMS.encode()
_TEXT = "text"
_TEXT_FIELDS = frozenset({"type", _TEXT})


def splittable(endpoint: Endpoint, fields: Mapping[str, Any], choices: int) -> bool:
    """Whether a request's prompt may be computed on another worker than its answer.

    What nobody has tried stays whole: several answers, several prompts, prompts with pictures or sounds.
    """
    if not endpoint.generates or choices != 1:
        return False
    if not KEEPS_WHOLE.isdisjoint(fields) and any(_is_asked_for(fields.get(name)) for name in KEEPS_WHOLE):
        return False
    return endpoint is not Endpoint.CHAT or _is_text(fields.get("messages"))


def prefill_body(body: bytes) -> bytes:
    """Asks a prefill worker to compute the prompt of this body and keep its KV to be fetched."""
    fields = {name: value for name, value in orjson.loads(body).items() if name in DEFINES_PROMPT}
    return orjson.dumps({**fields, "max_tokens": 1, "stream": False, KV_PARAMS: ASKS_TO_KEEP_KV})


def decode_body(body: bytes, params: bytes) -> bytes:
    """Asks a decode worker for the answer to this body, a JSON object with some field in it, by that KV."""
    # Spliced in before the closing brace: a long prompt is not written out anew for one small field.
    return body.rstrip()[:-1] + b",%b%b}" % (_KV_FIELD, params)


def kv_params(reply: bytes) -> bytes | None:
    """What a prefill worker's reply says of where the KV is; None where it kept none."""
    try:
        fields = orjson.loads(reply)
    except orjson.JSONDecodeError:
        return None
    params = fields.get(KV_PARAMS) if isinstance(fields, dict) else None
    return orjson.dumps(params) if isinstance(params, dict) and params else None


def without_kv_params(reply: bytes) -> bytes:
    """A plain reply as a client may see it: where KV lies is the engines' own affair."""
    # Within a string the quotes would be escaped: this is the field, and mostly it is null.
    at = reply.rfind(_KV_FIELD)
    if at < 0 or reply[at + len(_KV_FIELD) : at + len(_KV_FIELD) + 8].lstrip().startswith(b"null"):
        return reply
    try:
        fields = orjson.loads(reply)
    except orjson.JSONDecodeError:
        return reply
    if isinstance(fields, dict):
        fields.pop(KV_PARAMS, None)
    return orjson.dumps(fields)


def _is_asked_for(value: object) -> bool:
    return value is not None and value is not False


def _is_text(messages: object) -> bool:
    if isinstance(messages, list):
        for message in messages:
            content = message.get("content") if isinstance(message, dict) else None
            if isinstance(content, list) and not all(map(_is_text_part, content)):
                return False
    return True


def _is_text_part(part: object) -> bool:
    # By the fields too: engines go by them where there is no type.
    return isinstance(part, dict) and part.keys() <= _TEXT_FIELDS and part.get("type", _TEXT) == _TEXT
