"""The one table of request fields: whatever is decided by a field's name is derived from its row.

To add a field, add a row; fields with equal cells may share one. A cell that is `-` or missing says nothing.
A field that means something else on another endpoint has a row for each.

- type: its JSON type; a `count` multiplies the sequences that an engine runs. Or, where the gateway lends
  rights, how it is not passed on: `ignored` cannot change the answer: it is taken out and named in
  x-phasewise-ignored. `unsupported` would change the answer: it is an error unless it is null or `off`.
  `closed` controls the engine and is an error. Elsewhere these are passed on, but for two: `never`, and
  `gateway`, which the gateway sets.
- on: the endpoints that have it, joined by `+`. `text` is completions, `both` are chat and completions,
  `msg` is messages, `anth` are messages and their count of tokens, `turns` is all that takes a conversation,
  `most` is all that generates, `older` are chat, completions and embeddings, `openai` these and responses.
- prefill: what it defines when prefill and decode are disaggregated. What defines the `prompt` goes to the
  prefill worker. What defines the `answer` does not: the token this worker writes is thrown away. If a field
  that is `whole` is set, one worker does all.
- resume: what the next worker gets of it when an answer breaks off: the `same`, the `tokens` that /tokenize
  makes of it, the `rest` of it, or nothing where it is `unused` without another field. Any other word is an
  obstacle to resuming.
- off: the value, besides null, with which it is no obstacle, or asks for nothing.
- prefix: its part in prefix hashes. It is the `prompt`, stands before it (`opening`, in the table's order) or
  may change it from its first token on (`root`). If a field that is `reread` is set, engines compute all of
  the prompt. The others most templates never see, or put at the end: there, equal beginnings stay equal.
- schema: `yes` where engines make a grammar of it, whose size has to be bounded.
- cache: it is part of the `key` of a cached answer, changes only the `delivery`, or the cache is bypassed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Literal

from phasewise.core.caching import Bypass
from phasewise.core.request import WITH_KNOWN_FIELDS, Endpoint
from phasewise.core.value import value

_TABLE = """
field                         type     on        prefill resume     off             prefix  schema cache
# the prompt
model                         model    all       prompt  same       -               -       -      key
messages                      messages chat+anth prompt  tokens     -               prompt  -      key
prompt                        prompt   text      prompt  tokens     -               prompt  -      key
input                         prompt   embed     -       -          -               prompt  -      -
suffix                        text     text      prompt  between    ""              -       -      not_chat
documents                     list     chat      prompt  rendered   []              opening -      key
add_generation_prompt         boolean  chat      prompt  tokens     -               -       -      key
continue_final_message        boolean  chat      prompt  rendered   false           -       -      not_chat
add_special_tokens            boolean  older     prompt  tokens     -               root    -      key
chat_template_kwargs          object   turns     prompt  tokens     -               root    -      key
reasoning_effort              text     chat      prompt  rendered   -               root    -      key
include_reasoning             boolean  chat+resp prompt  hidden     true            -       -      key
truncate_prompt_tokens        integer  older     whole   rendered   -               root    -      key
truncation_side               text     older     whole   unused     -               root    -      key
# structured outputs by their present and their former names, tools
response_format               object   both      prompt  grammar    {"type":"text"} -       yes    key
structured_outputs            object   both+resp answer  grammar    -               -       yes    key
tools                         list     turns     prompt  calls      []              opening yes    tools
tool_choice                   anything chat+resp prompt  unused     -               -       -      tools
parallel_tool_calls           boolean  chat+resp prompt  unused     -               -       -      key
guided_json                   anything both      answer  grammar    -               -       yes    key
guided_regex                  text     both      answer  grammar    -               -       yes    key
guided_choice                 list     both      answer  grammar    -               -       -      key
guided_grammar                text     both      answer  grammar    -               -       -      key
guided_decoding_backend       text     both      answer  grammar    -               -       -      key
guided_whitespace_pattern     text     both      answer  grammar    -               -       -      key
# how long the answer is, and how many there are
max_tokens                    integer  both+msg  answer  rest       -               -       -      key
max_completion_tokens         integer  chat      answer  rest       -               -       -      key
min_tokens                    integer  both      answer  rest       -               -       -      key
thinking_token_budget         integer  both      answer  looks_back -1              -       -      key
ignore_eos                    boolean  both+resp answer  same       -               -       -      key
stop                          texts    both+resp answer  same       -               -       -      key
stop_token_ids                list     both+resp answer  same       -               -       -      key
include_stop_str_in_output    boolean  both+resp answer  same       -               -       -      key
repetition_detection          object   both      answer  looks_back -               -       -      key
n                             count    both      answer  parallel   1           -       -      several_answers
best_of                       count    text      answer  competing  1           -       -      several_answers
use_beam_search               boolean  both      whole   competing  false           -       -      not_chat
length_penalty                number   both      answer  unused     -               -       -      key
# sampling
temperature                   number   most      answer  same       -               -       -      temperature
top_p                         number   most      answer  same       -               -       -      key
top_k                         integer  most      answer  same       -               -       -      key
min_p                         number   both+resp answer  same       -               -       -      key
seed                          integer  both+resp answer  same       -               -       -      seed
frequency_penalty             number   both+resp answer  same       -               -       -      key
presence_penalty              number   both+resp answer  twice      0               -       -      key
repetition_penalty            number   both+resp answer  same       -               -       -      key
logit_bias                    object   both+resp answer  same       -               -       -      key
bad_words                     list     both      answer  looks_back []              -       -      key
allowed_token_ids             list     both      answer  same       -               -       -      key
# what the reply holds
logprobs                      anything both      answer  not_text   false           -       -      logprobs
top_logprobs                  integer  chat+resp answer  unused     -               -       -      logprobs
prompt_logprobs               integer  both      whole   not_text   -               reread  -      logprobs
logprob_token_ids             list     both      answer  not_text   []              -       -      logprobs
return_tokens_as_token_ids    boolean  both      answer  unused     -               -       -      not_chat
echo                          boolean  both      whole   repeated   false           reread  -      not_chat
skip_special_tokens           boolean  both+resp answer  mixed      true            -       -      key
spaces_between_special_tokens boolean  both      answer  same       -               -       -      key
encoding_format               text     embed     -       -          -               -       -      -
dimensions                    integer  embed     -       -          -               -       -      -
stream                        boolean  most      answer  same       -               -       -      delivery
stream_options                object   both      answer  same       -               -       -      delivery
user                          text     openai    answer  unused     -               -       -      key
# /v1/responses
input                         items    resp      -       -          -               prompt
instructions                  text     resp      -       -          -               opening
text                          object   resp      -       -          -               -       yes
reasoning                     object   resp      -       -          -               root
truncation                    text     resp      -       -          -               root
include                       list     resp
max_output_tokens,max_tool_calls integer resp
metadata                      object   resp
# /v1/messages
system                        system   anth      -       -          -               opening
thinking                      object   anth      -       -          -               root
output_config                 object   anth      -       -          -               root    yes
tool_choice                   object   anth
stop_sequences                list     msg
# OpenAI's and Anthropic's own, which no engine knows: they cannot change the answer
store,prompt_cache_key,prompt_cache_options,prompt_cache_retention,safety_identifier ignored chat+resp
service_tier                  ignored  chat+resp+msg
metadata                      ignored  chat+msg
prediction,verbosity          ignored  chat
client_metadata               ignored  resp
stream_options                ignored  resp
cache_control,speed,user_profile_id,workspace_id ignored anth
diagnostics                   ignored  msg
context_management            ignored  anth
# theirs, which would change the answer
modalities                    unsupported chat      -       -          ["text"]
functions                     unsupported chat      -       -          []
function_call                 unsupported chat      -       -          "none"
audio,web_search_options unsupported chat
moderation                    unsupported chat+resp
background                    unsupported resp      -       -          false
previous_response_id,conversation,prompt unsupported resp -     -          -               root
image,access_programs         unsupported resp
context_management            unsupported resp
container,mcp_servers,inference_geo,compaction,fallbacks,fallback_credit_token,thread unsupported anth
# the engine's own: some reach other hosts' memory or other tenants' cache, or fetch what a client names
kv_transfer_params,ec_transfer_params never all
request_id                    gateway  all
cache_salt                    closed   all       prompt  same       -               root
priority                      closed   all       -       same
chat_template,prompt_embeds,vllm_xargs closed all -      -          -               root
mm_processor_kwargs,media_io_kwargs closed all   -       -          -               root
previous_input_messages       closed   resp      -       -          -               root
return_token_ids,session_id,mm_payload,return_mm_kwargs,return_prompt_text closed all
return_token_offsets,routed_experts_prompt_start,stream_interval,watermarking,padding closed all
enable_response_messages      closed   resp
"""
OBSTACLES = {
    "between": "the answer is written between two texts",
    "calls": "a call may follow the text, which only a parser of calls would find",
    "competing": "several answers compete",
    "grammar": "the grammar's state at the break is unknown",
    "hidden": "the client was not sent all that was written",
    "looks_back": "it looks back at tokens written before the break",
    "mixed": "text and special tokens are mixed",
    "not_text": "its chunks hold more than text",
    "parallel": "several answers are interleaved",
    "rendered": "it changes the prompt in a way that /tokenize does not know",
    "repeated": "the prompt is a part of the answer",
    "twice": "a word before and after the break would count twice",
}
INSTEAD = {
    "function_call": "send tool_choice",
    "functions": "send tools",
    "background": "leave it out and stream the answer",
    "previous_response_id": "the gateway stores no responses: send the whole conversation in input",
    "conversation": "the gateway stores no conversations: send all of it in input",
    "prompt": "the gateway stores no prompts: send its text in instructions and input",
}
"""What to send instead of fields that are unsupported; the others are left out."""
_OTHER_HOSTS = "it says whose memory the engine reads"
CLOSED_BECAUSE = {
    "kv_transfer_params": _OTHER_HOSTS,
    "ec_transfer_params": _OTHER_HOSTS,
    "request_id": "engines merge requests of one id",
    "cache_salt": "it keeps tenants apart in the engine's cache",
    "priority": "it decides whose request the engine serves first, as a key's priority does here",
    "chat_template": "a template is a program that the engine runs",
    "prompt_embeds": "the engine loads tensors from it",
    "vllm_xargs": "it can hold any control of the engine",
    "mm_processor_kwargs": "it decides how much memory the engine takes for an image",
    "media_io_kwargs": "it decides how much memory the engine takes for a file",
}
"""Why clients may not set a field; the others are closed because they control the engine."""
_ENDPOINTS: dict[str, tuple[Endpoint, ...]] = {
    "all": WITH_KNOWN_FIELDS,
    "both": (Endpoint.CHAT, Endpoint.COMPLETIONS),
    "chat": (Endpoint.CHAT,),
    "text": (Endpoint.COMPLETIONS,),
    "embed": (Endpoint.EMBEDDINGS,),
    "resp": (Endpoint.RESPONSES,),
    "msg": (Endpoint.MESSAGES,),
    "anth": (Endpoint.MESSAGES, Endpoint.COUNT_TOKENS),
    "turns": (Endpoint.CHAT, Endpoint.RESPONSES, Endpoint.MESSAGES, Endpoint.COUNT_TOKENS),
    "most": tuple(endpoint for endpoint in Endpoint if endpoint.generates),
    "older": (Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.EMBEDDINGS),
    "openai": (Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.EMBEDDINGS, Endpoint.RESPONSES),
}
FieldType = Literal[
    "anything", "boolean", "count", "integer", "items", "list", "messages", "model", "number", "object",
    "prompt", "system", "text", "texts", "ignored", "unsupported", "closed", "gateway", "never",
]  # fmt: skip


@value
class RequestField:
    """A row of the table. `obstacle` is why answers cannot be resumed unless its value is one of `off`."""

    name: str
    type: FieldType
    endpoints: frozenset[Endpoint]
    prefill: Literal["prompt", "answer", "whole"] | None
    resume: Literal["same", "tokens", "rest", "unused"] | None
    obstacle: str | None
    off: tuple[object, ...]
    prefix: Literal["prompt", "opening", "root", "reread"] | None
    holds_schema: bool
    bypass: Bypass | None
    is_delivery: bool

    @property
    def is_passed_on(self) -> bool:
        """Whether engines get it from clients even where the gateway lends rights."""
        return self.type not in {"ignored", "unsupported", "closed", "gateway", "never"}


def _rows() -> Iterator[RequestField]:
    columns, *lines = _TABLE.strip().splitlines()
    for line in lines:
        if line.startswith("#"):
            continue
        cells: dict[str, Any] = dict.fromkeys(columns.split())
        cells |= {at: cell for at, cell in zip(cells, line.split(), strict=False) if cell != "-"}
        resume, off, cache = cells["resume"], cells["off"], cells["cache"]
        for name in cells["field"].split(","):
            yield RequestField(
                name=name,
                type=cells["type"],
                endpoints=frozenset(on for group in cells["on"].split("+") for on in _ENDPOINTS[group]),
                prefill=cells["prefill"],
                resume=None if resume in OBSTACLES else resume,
                obstacle=OBSTACLES.get(resume),
                off=(None,) if off is None else (None, json.loads(off)),
                prefix=cells["prefix"],
                holds_schema=cells["schema"] == "yes",
                bypass=None if cache in {None, "key", "delivery"} else Bypass(cache),
                is_delivery=cache == "delivery",
            )


ROWS = tuple(_rows())
FIELDS = {row.name: row for row in reversed(ROWS)}
"""By name, the first row of each: only this one says how answers are disaggregated, resumed and cached."""
FIELDS_ON = {on: {row.name: row for row in ROWS if on in row.endpoints} for on in Endpoint}


def fields_where(holds: Callable[[RequestField], bool], on: Endpoint | None = None) -> tuple[str, ...]:
    """The names of the fields for which this holds, of one endpoint or of all, in the order of the table."""
    rows = ROWS if on is None else FIELDS_ON[on].values()
    return tuple(dict.fromkeys(row.name for row in rows if holds(row)))


PROMPT_FIELD = {on: row.name for row in ROWS if row.prefix == "prompt" for on in row.endpoints}
