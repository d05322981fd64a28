"""The one table of request fields: whatever is decided by a field's name is derived from its row.

To add a field, add a row; fields with equal cells may share one. A cell that is `-` or missing says nothing.

- type: its JSON type; a `count` multiplies the sequences that an engine runs. Or how it is not passed on:
  `ignored` is taken out and named in x-phasewise-ignored, `rejected` is an error, and so is `gateway`,
  which the gateway sets.
- on: the endpoints that have it. `text` is completions, `both` are chat and completions.
- prefill: what it defines when prefill and decode are disaggregated. What defines the `prompt` goes to the
  prefill worker. What defines the `answer` does not: the token this worker writes is thrown away. If a field
  that is `whole` is set, one worker does all.
- resume: what the next worker gets of it when an answer breaks off: the `same`, the `tokens` that /tokenize
  makes of it, the `rest` of it, or nothing where it is `unused` without another field. Any other word is an
  obstacle to resuming.
- off: the value, besides null, with which it is no obstacle.
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
from phasewise.core.request import Endpoint
from phasewise.core.value import value

_TABLE = """
field                         type     on    prefill resume     off             prefix  schema cache
# the prompt
model                         model    all   prompt  same       -               -       -      key
messages                      messages chat  prompt  tokens     -               prompt  -      key
prompt                        prompt   text  prompt  tokens     -               prompt  -      key
input                         prompt   embed -       -          -               prompt  -      -
suffix                        text     text  prompt  between    ""              -       -      not_chat
documents                     list     chat  prompt  rendered   []              opening -      key
add_generation_prompt         boolean  chat  prompt  tokens     -               -       -      key
continue_final_message        boolean  chat  prompt  rendered   false           -       -      not_chat
add_special_tokens            boolean  all   prompt  tokens     -               root    -      key
chat_template_kwargs          object   chat  prompt  tokens     -               root    -      key
reasoning_effort              text     chat  prompt  rendered   -               root    -      key
include_reasoning             boolean  chat  prompt  hidden     true            -       -      key
truncate_prompt_tokens        integer  all   whole   rendered   -               root    -      key
truncation_side               text     all   whole   unused     -               root    -      key
# structured outputs by their present and their former names, tools
response_format               object   both  prompt  grammar    {"type":"text"} -       yes    key
structured_outputs            object   both  answer  grammar    -               -       yes    key
tools                         list     chat  prompt  calls      []              opening yes    tools
tool_choice                   anything chat  prompt  unused     -               -       -      tools
parallel_tool_calls           boolean  chat  prompt  unused     -               -       -      key
guided_json                   anything both  answer  grammar    -               -       yes    key
guided_regex                  text     both  answer  grammar    -               -       yes    key
guided_choice                 list     both  answer  grammar    -               -       -      key
guided_grammar                text     both  answer  grammar    -               -       -      key
guided_decoding_backend       text     both  answer  grammar    -               -       -      key
guided_whitespace_pattern     text     both  answer  grammar    -               -       -      key
# how long the answer is, and how many there are
max_tokens                    integer  both  answer  rest       -               -       -      key
max_completion_tokens         integer  chat  answer  rest       -               -       -      key
min_tokens                    integer  both  answer  rest       -               -       -      key
thinking_token_budget         integer  both  answer  looks_back -1              -       -      key
ignore_eos                    boolean  both  answer  same       -               -       -      key
stop                          texts    both  answer  same       -               -       -      key
stop_token_ids                list     both  answer  same       -               -       -      key
include_stop_str_in_output    boolean  both  answer  same       -               -       -      key
repetition_detection          object   both  answer  looks_back -               -       -      key
n                             count    both  answer  parallel   1               -       -      several_answers
best_of                       count    text  answer  competing  1               -       -      several_answers
use_beam_search               boolean  both  whole   competing  false           -       -      not_chat
length_penalty                number   both  answer  unused     -               -       -      key
# sampling
temperature                   number   both  answer  same       -               -       -      temperature
top_p                         number   both  answer  same       -               -       -      key
top_k                         integer  both  answer  same       -               -       -      key
min_p                         number   both  answer  same       -               -       -      key
seed                          integer  both  answer  same       -               -       -      seed
frequency_penalty             number   both  answer  same       -               -       -      key
presence_penalty              number   both  answer  twice      0               -       -      key
repetition_penalty            number   both  answer  same       -               -       -      key
logit_bias                    object   both  answer  same       -               -       -      key
bad_words                     list     both  answer  looks_back []              -       -      key
allowed_token_ids             list     both  answer  same       -               -       -      key
# what the reply holds
logprobs                      anything both  answer  not_text   false           -       -      logprobs
top_logprobs                  integer  chat  answer  unused     -               -       -      logprobs
prompt_logprobs               integer  both  whole   not_text   -               reread  -      logprobs
logprob_token_ids             list     both  answer  not_text   []              -       -      logprobs
return_tokens_as_token_ids    boolean  both  answer  unused     -               -       -      not_chat
echo                          boolean  both  whole   repeated   false           reread  -      not_chat
skip_special_tokens           boolean  both  answer  mixed      true            -       -      key
spaces_between_special_tokens boolean  both  answer  same       -               -       -      key
encoding_format               text     embed -       -          -               -       -      -
dimensions                    integer  embed -       -          -               -       -      -
stream                        boolean  both  answer  same       -               -       -      delivery
stream_options                object   both  answer  same       -               -       -      delivery
user                          text     all   answer  unused     -               -       -      key
# OpenAI's own, which no engine knows
function_call                 ignored  chat  -       -          -               -       -      tools
functions                     ignored  chat  -       -          -               -       -      tools
audio,metadata,modalities,moderation,prediction,prompt_cache_key,prompt_cache_options ignored chat
prompt_cache_retention,safety_identifier,service_tier,store,verbosity,web_search_options ignored chat
# the engine's own: some reach other hosts' memory or other tenants' cache, or fetch what a client names
cache_salt                    gateway  all   prompt  same
kv_transfer_params            gateway  all
priority                      rejected all   -       same
ec_transfer_params,return_token_ids,request_id,session_id,prompt_embeds,vllm_xargs,chat_template rejected all
mm_processor_kwargs,media_io_kwargs,mm_payload,return_mm_kwargs,return_prompt_text rejected all
return_token_offsets,routed_experts_prompt_start,stream_interval,watermarking,padding rejected all
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
_ENDPOINTS = {
    "all": frozenset(Endpoint),
    "both": frozenset({Endpoint.CHAT, Endpoint.COMPLETIONS}),
    "chat": frozenset({Endpoint.CHAT}),
    "text": frozenset({Endpoint.COMPLETIONS}),
    "embed": frozenset({Endpoint.EMBEDDINGS}),
}
FieldType = Literal[
    "anything", "boolean", "count", "integer", "list", "messages", "model", "number", "object", "prompt",
    "text", "texts", "ignored", "rejected", "gateway",
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
        """Whether engines get it from clients."""
        return self.type not in {"ignored", "rejected", "gateway"}


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
                endpoints=_ENDPOINTS[cells["on"]],
                prefill=cells["prefill"],
                resume=None if resume in OBSTACLES else resume,
                obstacle=OBSTACLES.get(resume),
                off=(None,) if off is None else (None, json.loads(off)),
                prefix=cells["prefix"],
                holds_schema=cells["schema"] == "yes",
                bypass=None if cache in {None, "key", "delivery"} else Bypass(cache),
                is_delivery=cache == "delivery",
            )


FIELDS = {row.name: row for row in _rows()}


def fields_where(holds: Callable[[RequestField], bool], on: Endpoint | None = None) -> tuple[str, ...]:
    """The names of the fields for which this holds, of one endpoint or of all, in the order of the table."""
    return tuple(it.name for it in FIELDS.values() if (on is None or on in it.endpoints) and holds(it))


PROMPT_FIELD = {it: row.name for row in FIELDS.values() if row.prefix == "prompt" for it in row.endpoints}
