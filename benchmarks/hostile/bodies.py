"""Well-framed requests by chance: nearly half of them valid, the others wrong in one of many ways.

Each is drawn from a generator of random numbers, so that a seed makes a run again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

from phasewise.core.request import WITH_KNOWN_FIELDS, Endpoint
from phasewise.core.request_fields import PROMPT_FIELD
from phasewise.gateway.api.fields import ALLOWED_FIELDS, ENGINE_CONTROLS, IGNORED_FIELDS, TEMPLATE_CONTROLS

from .cases import ADMIN_KEY, CANARIES, KEYS, MODEL, Case, key_header

VALID_SHARE = 0.45
ENDPOINTS = WITH_KNOWN_FIELDS
OUTPUT_LIMIT = dict.fromkeys(WITH_KNOWN_FIELDS, "max_tokens") | {Endpoint.RESPONSES: "max_output_tokens"}
LETTERS = 'abc xyz 019 äöü ß 漢字 🎈 "quoted" \\back\\ \t {}[],: \u2028 \u0000'
WRONG_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1.5, 1e308, 2**63, -(2**63), 2**64, 10**30, "", "x" * 5000, [], {}, [[[]]],
    {"a": {"b": []}}, ["x"] * 1000, {"$ref": "#"}, "../../etc/passwd", "${jndi:ldap://127.0.0.1/x}", "%00",
    "\u0000", "-0", [None], "1e999",
)  # fmt: skip


def draw(rng: Random, count: int) -> list[Case]:
    """So many cases."""
    cases = []
    for _ in range(count):
        tenant = rng.choice(("a", "b"))
        if rng.random() < VALID_SHARE:
            cases.append(valid(rng, tenant))
        else:
            cases.append(rng.choice(WRONG)(rng, tenant))
    return cases


def valid(rng: Random, tenant: str) -> Case:
    """A request that has to be served."""
    endpoint = rng.choice(ENDPOINTS)
    fields = prompt_fields(rng, tenant, endpoint)
    if endpoint.generates:
        fields |= {"max_tokens": rng.randint(1, 8)} if rng.random() < 0.9 else {"max_tokens": 3, "seed": 7}
        fields |= some_of(
            rng,
            {
                "temperature": rng.random(),
                "top_p": 0.9,
                "top_k": 5,
                "stop": ["\n\n"],
                "user": "u",
                "ignore_eos": True,
                "logit_bias": {"5": 1},
                "min_tokens": 1,
                "presence_penalty": 0.1,
            },
        )
        if rng.random() < 0.5:
            fields["stream"] = True
            fields |= some_of(rng, {"stream_options": {"include_usage": rng.random() < 0.5}})
        fields[OUTPUT_LIMIT[endpoint]] = fields["max_tokens"]
    fields = {name: value for name, value in fields.items() if name in ALLOWED_FIELDS[endpoint]}
    return served(endpoint, tenant, dumped(rng, fields))


def prompt_fields(rng: Random, tenant: str, endpoint: Endpoint) -> dict[str, Any]:
    """The smallest body of an endpoint, with the tenant's own word in it."""
    text = f"{words(rng)} {CANARIES[tenant]}"
    if PROMPT_FIELD[endpoint] == "messages":
        content = text if rng.random() < 0.7 else [{"type": "text", "text": text}]
        turns = [{"role": "system", "content": "be brief"}] * rng.randint(0, 2)
        return {"model": MODEL, "messages": [*turns, {"role": "user", "content": content}]}
    several = [{"role": "user", "content": text}] if endpoint is Endpoint.RESPONSES else [text]
    return {"model": MODEL, PROMPT_FIELD[endpoint]: text if rng.random() < 0.8 else several}


def words(rng: Random) -> str:
    """Some text."""
    return "".join(rng.choice(LETTERS) for _ in range(rng.choice((0, 5, 40, 400, 4000))))


def some_of(rng: Random, fields: dict[str, Any]) -> dict[str, Any]:
    """About half of these."""
    return {name: value for name, value in fields.items() if rng.random() < 0.5}


def dumped(rng: Random, fields: dict[str, Any]) -> bytes:
    """As JSON, escaped or not, spaced or not."""
    space = rng.choice((None, (",", ":"), (" , ", " : ")))
    return json.dumps(fields, ensure_ascii=rng.random() < 0.5, separators=space).encode()


def served(endpoint: Endpoint, tenant: str, body: bytes, kind: str = "valid") -> Case:
    """A request that has to be answered with 200."""
    return Case(kind, body, endpoint.value, "POST", tenant, (key_header(KEYS[tenant]),), (200,))


def rejected(kind: str, tenant: str, body: bytes, accepted: tuple[int, ...] = (400,)) -> Case:
    """A chat that has to be rejected."""
    return Case(kind, body, Endpoint.CHAT.value, "POST", tenant, (key_header(KEYS[tenant]),), accepted)


# --- wrong in one of many ways ----------------------------------------------------------------------------


def chat_fields(rng: Random, tenant: str) -> dict[str, Any]:
    return prompt_fields(rng, tenant, Endpoint.CHAT) | {"max_tokens": 2}


def not_json(rng: Random, tenant: str) -> Case:
    body = dumped(rng, chat_fields(rng, tenant))
    broken = [
        body[: rng.randrange(len(body))],
        body + b"}",
        body[:-1] + b",}",
        b"\xef\xbb\xbf" + body,
        body.replace(b'"', b"'"),
        bytes(rng.randrange(256) for _ in range(rng.randint(0, 200))) + b"\xff",
        body[:-1] + b',"seed":NaN}',
        body[:-1] + b',"user":"\\ud800"}',
        body[:-1] + b',"user":"\xff\xfe"}',
        body[:-1] + b',"seed":' + b"9" * 5000 + b"x}",
        b"[" + body + b"]",
        b'"' + CANARIES[tenant].encode() + b'"',
        b"",
    ]
    return rejected("not_json", tenant, rng.choice(broken))


def engine_control(rng: Random, tenant: str) -> Case:
    name = rng.choice(sorted(ENGINE_CONTROLS))
    given = rng.choice([value for value in WRONG_VALUES if value is not None])
    text = dumped(rng, chat_fields(rng, tenant) | {name: given})
    escaped = "".join(f"\\u{ord(letter):04x}" for letter in name)
    if rng.random() < 0.3:
        text = text.replace(name.encode(), escaped.encode())
    return rejected("engine_control", tenant, text)


def kv_control(rng: Random, tenant: str) -> Case:
    """Where an engine fetches a KV cache from is nobody's to say, at any depth."""
    name = rng.choice(("kv_transfer_params", "ec_transfer_params"))
    inner: dict[str, Any] = {name: {"do_remote_decode": True}}
    for outer in rng.choice(((), ("vllm_xargs",), ("extra_args", "sampling_params"), ("c", "b", "metadata"))):
        inner = {outer: inner}
    return rejected("kv_control", tenant, dumped(rng, chat_fields(rng, tenant) | inner))


def hidden_control(rng: Random, tenant: str) -> Case:
    fields = chat_fields(rng, tenant)
    part: dict[str, Any] = rng.choice(
        [
            {"type": "image_url", "image_url": {"url": "http://169.254.169.254/latest"}},
            {"type": "image_url", "image_url": None, "uuid": CANARIES["a"]},
            {"type": "prompt_embeds", "data": "AAAA"},
            {"video_url": "file:///etc/passwd"},
        ]
    )
    if rng.random() < 0.5:
        fields["messages"] = [{"role": "user", "content": [part]}]
    else:
        fields["chat_template_kwargs"] = {rng.choice(sorted(TEMPLATE_CONTROLS)): 1}
    return rejected("hidden_control", tenant, dumped(rng, fields))


def unknown_field(rng: Random, tenant: str) -> Case:
    name = rng.choice(("__proto__", "constructor", "", "x" * 300, "Model", "max-tokens", CANARIES[tenant]))
    return served(Endpoint.CHAT, tenant, dumped(rng, chat_fields(rng, tenant) | {name: 1}), "unknown_field")


def wrong_value(rng: Random, tenant: str) -> Case:
    """An allowed field with a value nobody asked for: what the engine makes of it is passed on."""
    endpoint = rng.choice(ENDPOINTS)
    fields = prompt_fields(rng, tenant, endpoint)
    if endpoint.generates:
        fields[OUTPUT_LIMIT[endpoint]] = 2
    fields[rng.choice(sorted(ALLOWED_FIELDS[endpoint]))] = rng.choice(WRONG_VALUES)
    headers = (key_header(KEYS[tenant]),)
    return Case("wrong_value", dumped(rng, fields), endpoint.value, "POST", tenant, headers)


def too_deep(rng: Random, tenant: str) -> Case:
    deep = rng.choice((65, 500, 1000, 2000, 50_000))
    body = dumped(rng, chat_fields(rng, tenant))
    nest = b'{"a":' * deep + b"1" + b"}" * deep if rng.random() < 0.5 else b"[" * deep + b"]" * deep
    return rejected("too_deep", tenant, body[:-1] + b',"tools":' + nest + b"}")


def twice(rng: Random, tenant: str) -> Case:
    """The same key twice: the later one counts, here and in engines; a control in either is rejected."""
    body = dumped(rng, chat_fields(rng, tenant))
    if rng.random() < 0.5:
        return rejected("duplicate_key", tenant, b'{"cache_salt":"x",' + body[1:-1] + b',"seed":1}')
    return served(Endpoint.CHAT, tenant, b'{"model":"none",' + body[1:], "duplicate_key")


def huge_number(rng: Random, tenant: str) -> Case:
    number = rng.choice(
        (b"1e999", b"-1e400", b"9" * 400, b"0." + b"1" * 5000, b"1E+308", b"18446744073709551616")
    )
    body = dumped(rng, chat_fields(rng, tenant))
    headers = (key_header(KEYS[tenant]),)
    field = rng.choice((b"seed", b"temperature", b"max_tokens", b"n"))
    return Case(
        "huge_number", body[:-1] + b',"' + field + b'":' + number + b"}", tenant=tenant, headers=headers
    )


def no_such_model(rng: Random, tenant: str) -> Case:
    name = rng.choice(("none", "FAKE-MODEL", "fake-model\u0000", "../fake-model", "x" * 256))
    return rejected("no_such_model", tenant, dumped(rng, chat_fields(rng, tenant) | {"model": name}), (404,))


def not_let_in(rng: Random, tenant: str) -> Case:
    """No key, or a wrong one, on any address that asks for one."""
    wrong = [
        (),
        (key_header("none"),),
        ((b"authorization", b"Basic " + KEYS[tenant].encode()),),
        ((b"authorization", b"Bearer"),),
        ((b"authorization", b"Bearer " + b"x" * 5000),),
        (key_header(KEYS[tenant].upper()),),
        ((b"x-api-key", b"none"),),
        ((b"x-api-key", b"Bearer " + KEYS[tenant].encode()),),
    ]
    body = dumped(rng, chat_fields(rng, tenant))
    return Case("not_let_in", body, tenant=tenant, headers=rng.choice(wrong), accepted=(401,))


ADMIN_PATHS = (
    "requests",
    "requests/open",
    "requests/x",
    "workers",
    "requests?slowest=e2e",
    "requests?after=0",
)


def admin_by_client(rng: Random, tenant: str) -> Case:
    path = f"/phasewise/v1/{rng.choice(ADMIN_PATHS)}"
    headers = (key_header(KEYS[tenant]),)
    return Case("admin_by_client", b"", path, "GET", tenant, headers, (401,))


def odd_query(rng: Random, tenant: str) -> Case:
    name = rng.choice(("limit", "after", "since_unix_s", "slowest", "none"))
    value = rng.choice(("-1", "1e99", "nan", "inf", "", "%00", "1;2", "9" * 500, "ttft", "%F0%28", "0x10"))
    path = f"/phasewise/v1/requests?limit=2&{name}={value}&{name}"
    return Case("odd_query", b"", path, "GET", None, (key_header(ADMIN_KEY),), (200, 400))


ODD_PATHS = (
    "/", "/v1", "/v1/chat/completions/", "//v1/models", "/v1/../metrics", "/%2e%2e/", "/docs", "/tokenize",
    "/v1/chat%2Fcompletions%00", "/steps", "/fake/fault", "/v1/load_lora_adapter",
)  # fmt: skip


def odd_address(rng: Random, tenant: str) -> Case:
    method = rng.choice(("GET", "POST", "PUT", "DELETE", "PATCH"))
    headers = (key_header(KEYS[tenant]),)
    return Case("odd_address", b"{}", rng.choice(ODD_PATHS), method, tenant, headers, (404, 405))


def slow_pattern(rng: Random, tenant: str) -> Case:
    """What a scanner that goes back would read for seconds or minutes; an engine may take it or not."""
    size = rng.choice((500, 2_000, 8_000))
    text = rng.choice(
        ("{" + " " * size, "{" + "0" * size, "{ " * size, "a{" + "9" * size + "}", "{1," * size)
    )
    way: dict[str, Any] = rng.choice(
        (
            {"guided_regex": text},
            {"structured_outputs": {"regex": text}},
            {"guided_json": json.dumps({"type": "string", "pattern": text})},
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"pattern": text}}}},
        )
    )
    body = dumped(rng, chat_fields(rng, tenant) | way)
    return rejected("slow_pattern", tenant, body, (200, 400))


def many_parts(rng: Random, tenant: str) -> Case:
    """Lists and objects that are cheap to send and dear to read."""
    part = rng.choice((b"[]", b"{}", b'{"a":1}', b"[[]]", b'{"a":"]"}'))
    size = 1_800_000 if rng.random() < 0.1 else 220_000
    inside = b",".join([part] * (size // (len(part) + 1)))
    field = rng.choice((b"tools", b"documents", b"metadata", b"messages", b"none"))
    body = dumped(rng, chat_fields(rng, tenant))
    return rejected("many_parts", tenant, body[:-1] + b',"' + field + b'":[' + inside + b"]}")


def many_inputs(rng: Random, tenant: str) -> Case:
    inputs = [rng.choice(("x", [1]))] * rng.choice((2_049, 20_000))
    body, headers = dumped(rng, {"model": MODEL, "input": inputs}), (key_header(KEYS[tenant]),)
    return Case("many_inputs", body, Endpoint.EMBEDDINGS.value, "POST", tenant, headers, (400,))


def openais_own(rng: Random, tenant: str) -> Case:
    """Fields that OpenAI has and engines have not, whatever they hold, are ignored."""
    names = rng.sample(sorted(IGNORED_FIELDS[Endpoint.CHAT]), rng.randint(1, 5))
    more = {name: rng.choice(WRONG_VALUES) for name in names}
    return served(Endpoint.CHAT, tenant, dumped(rng, chat_fields(rng, tenant) | more), "openais_own")


WRONG: tuple[Callable[[Random, str], Case], ...] = (
    not_json, engine_control, kv_control, hidden_control, unknown_field, wrong_value, wrong_value, too_deep,
    twice, huge_number, no_such_model, not_let_in, admin_by_client, odd_query, odd_address,
    slow_pattern, many_parts, many_inputs, openais_own,
)  # fmt: skip
