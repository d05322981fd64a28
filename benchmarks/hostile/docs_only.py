"""Kinds of hostile requests, written with only the documentation at hand.

They sit just below and just above the documented limits, put much where little is expected, and frame their
bytes oddly, to burn the event loop's time, hold memory or connections, or reach what their key does not open.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from functools import cache
from random import Random

from .cases import CANARIES, KEYS, MODEL, Case, Headers, RawCase, key_header

ON_LOOP = 255 * 1024
"""As much as the largest of the bodies that are meant to be read on the event loop."""
HEAD = 32 * 1024
BODY = 32 * 1024 * 1024
PATTERNS = 65_536
CONTAINERS = 20_000
VALUES = 1_000_000
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
EMBEDDINGS = "/v1/embeddings"
TENANTS = ("a", "b")
REJECTED = (400,)
SERVED = (200,)
NO_KEY = (401,)


def _tenant(rng: Random) -> str:
    return rng.choice(TENANTS)


def _size(rng: Random) -> int:
    """Mostly small, sometimes the most that is parsed on the event loop."""
    return rng.choice((500, 2_000, 8_000, 30_000, 60_000, 120_000, ON_LOOP - 2_000))


def _of(piece: bytes, size: int) -> bytes:
    """The piece again and again, whole ones only, in up to so many bytes."""
    return piece * (size // len(piece))


def _string(text: str) -> bytes:
    return json.dumps(text).encode()


def _chat_body(tenant: str, rng: Random, extra: bytes = b"") -> bytes:
    return b'{"model":"%b","max_tokens":%d,"messages":[{"role":"user","content":"%b %d"}]%b}' % (
        MODEL.encode(),
        rng.randint(1, 4),
        CANARIES[tenant].encode(),
        rng.getrandbits(30),
        extra,
    )


def _with_content(tenant: str, rng: Random, content: bytes, extra: bytes = b"") -> bytes:
    """A chat whose only message has this content, in JSON."""
    return b'{"model":"%b","max_tokens":%d,"messages":[{"role":"user","content":%b}]%b}' % (
        MODEL.encode(),
        rng.randint(1, 4),
        content,
        extra,
    )


def _with_prompt(rng: Random, prompt: bytes, extra: bytes = b"") -> bytes:
    """A completion of this prompt, in JSON."""
    return b'{"model":"%b","max_tokens":%d,"prompt":%b%b}' % (
        MODEL.encode(),
        rng.randint(1, 4),
        prompt,
        extra,
    )


def _case(
    kind: str,
    tenant: str,
    body: bytes,
    *,
    path: str = CHAT,
    headers: Headers = (),
    accepted: tuple[int, ...] = (),
) -> Case:
    return Case(
        kind, body, path=path, tenant=tenant, headers=(key_header(KEYS[tenant]), *headers), accepted=accepted
    )


def _extra(kind: str, rng: Random, extra: bytes, accepted: tuple[int, ...] = ()) -> Case:
    """A small chat with these fields more."""
    tenant = _tenant(rng)
    return _case(kind, tenant, _chat_body(tenant, rng, b"," + extra), accepted=accepted)


def _head(line: bytes, tenant: str | None, *headers: bytes) -> bytes:
    """A raw request's head."""
    lines = [line, b"host: 127.0.0.1", b"content-type: application/json"]
    if tenant is not None:
        lines.append(b": ".join(key_header(KEYS[tenant])))
    return b"\r\n".join((*lines, *headers)) + b"\r\n\r\n"


def _post(tenant: str | None, *headers: bytes) -> bytes:
    return _head(b"POST /v1/chat/completions HTTP/1.1", tenant, *headers)


# Fields of a body, small enough for the event loop


def repeats_in_repeats(rng: Random) -> Case:
    """Repeats within repeats: each is small, together they are thousands."""
    times, deep = rng.choice(((40, 3), (12, 5), (100, 2), (7, 9), (2, 24)))
    pattern = b"(" * deep + b"[a-z]" + b"".join(b"){%d}" % times for _ in range(deep))
    form = rng.choice(
        (
            b'"guided_regex":"%b"',
            b'"structured_outputs":{"regex":"%b"}',
            b'"guided_json":{"type":"string","pattern":"%b"}',
            b'"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{"pattern":"%b"}}}',
            b'"tools":[{"type":"function","function":{"name":"f","parameters":{"pattern":"%b"}}}]',
        )
    )
    return _extra("repeats_in_repeats", rng, form % pattern, REJECTED)


def braces_never_closed(rng: Random) -> Case:
    """Patterns of nothing but beginnings: braces, parentheses, classes, groups, escapes."""
    piece = rng.choice(
        (
            b"{",
            b"(",
            b"[",
            b"(?:",
            b"a{1,",
            b"{1,9",
            b"a{",
            b"\\\\",
            b"[^[",
            b"(?P<",
            b"(?=",
            b"\\\\x{",
            b"a{9999",
            b"|(",
        )
    )
    pattern = _of(piece, rng.choice((900, 9_000, PATTERNS - 40)))
    field = rng.choice((b'"guided_regex"', b'"guided_whitespace_pattern"'))
    return _extra("braces_never_closed", rng, field + b':"' + pattern + b'"')


def patterns_in_all(rng: Random) -> Case:
    """Many short patterns whose lengths add up to just below or above what is allowed."""
    over = rng.random() < 0.5
    each = rng.choice((16, 64, 1_024))
    count = PATTERNS // each + (1 if over else -2)
    schema = b'{"anyOf":[' + b",".join([b'{"pattern":"' + b"a" * each + b'"}'] * count) + b"]}"
    return _extra("patterns_in_all", rng, b'"guided_json":' + schema, REJECTED if over else ())


def property_patterns(rng: Random) -> Case:
    """Patterns as the names of properties rather than as values."""
    name = rng.choice((b"((((a{99}){99}){99}){99})", b"(a|aa)+" * 50, b"{" * 900, b"^.*" * 300))
    count = rng.choice((1, 20, 60))
    members = b",".join(b'"%b%d":{}' % (name, number) for number in range(count))
    return _extra("property_patterns", rng, b'"guided_json":{"patternProperties":{' + members + b"}}")


def backslashes_in_strings(rng: Random) -> Case:
    """A schema in a string, in which half of the characters are backslashes."""
    slashes = _of(b"\\\\\\\\", _size(rng))
    tail = rng.choice((b"", b'\\"', b"\\\\\\"))
    return _extra(
        "backslashes_in_strings", rng, b'"guided_json":"{\\"pattern\\":\\"' + slashes + tail + b'\\"}"'
    )


@cache
def _deep_string(deep: int, around: int) -> bytes:
    """A schema `deep` levels deep, within so many strings."""
    text = '{"items":' * deep + "{}" + "}" * deep
    for _ in range(around):
        text = json.dumps(text)
    return _string(text)


def schema_in_a_string(rng: Random) -> Case:
    """A schema in a string, nested too deeply or just not."""
    deep = rng.choice((50, 80, 2_000, 15_000))
    field = rng.choice((b'"guided_json":%b', b'"structured_outputs":{"json":%b}'))
    accepted = REJECTED if deep > 64 else ()
    return _extra("schema_in_a_string", rng, field % _deep_string(deep, 0), accepted)


def string_in_a_string(rng: Random) -> Case:
    """A schema in a string in a string in a string: each level doubles its backslashes."""
    return _extra(
        "string_in_a_string", rng, b'"guided_json":' + _deep_string(rng.choice((1, 60)), rng.randint(1, 8))
    )


def endless_grammar(rng: Random) -> Case:
    """A grammar of rules that call themselves, or one rule without an end."""
    piece = rng.choice(
        (
            b"root ::= root root | root\\n",
            b'root ::= ((((\\"a\\"*)*)*)*)*\\n',
            b"| ",
            b"(",
            b"\\n\\t ",
            b"#",
            b'\\"',
            b"start: start start\\n",
            b"x{1,1000}",
        )
    )
    grammar = b'"root ::= ' + _of(piece, _size(rng)) + b'"'
    field = rng.choice((b'"guided_grammar":%b', b'"structured_outputs":{"grammar":%b}'))
    return _extra("endless_grammar", rng, field % grammar)


def digit_runs(rng: Random) -> Case:
    """A whole number of up to a quarter of a million digits."""
    digits = b"%d" % rng.randint(1, 9) + b"7" * rng.choice((30, 4_299, 4_301, 60_000, ON_LOOP - 2_000))
    field = rng.choice(
        (
            b'"seed":%b',
            b'"seed":-%b',
            b'"max_tokens":%b',
            b'"logit_bias":{"1":%b}',
            b'"stop_token_ids":[%b]',
            b'"guided_json":{"maximum":%b}',
            b'"chat_template_kwargs":{"x":%b}',
        )
    )
    return _extra("digit_runs", rng, field % digits, REJECTED)


def long_fractions(rng: Random) -> Case:
    """Numbers with endless fractions and exponents, and what only some parsers take for numbers."""
    number = rng.choice(
        (
            b"0." + b"0" * _size(rng) + b"1",
            b"0." + b"9" * _size(rng),
            b"1e-" + b"9" * 300,
            b"1e" + b"0" * _size(rng) + b"1",
            b"1E400",
            b"-0",
            b"-0.0e-0",
            b"NaN",
            b"-Infinity",
            b"1_000",
            b"01",
            b".5",
            b"0x10",
            b"5e-324",
            b"9223372036854775808",
            b"18446744073709551615",
            b"1.7976931348623159e308",
        )
    )
    field = rng.choice((b"temperature", b"top_p", b"min_p", b"length_penalty", b"max_tokens"))
    return _extra("long_fractions", rng, b'"%b":%b' % (field, number))


@cache
def _colliding(count: int) -> bytes:
    """Names that are equal in their hash to whoever makes whole numbers of them in Python."""
    prime = 2**61 - 1
    return b",".join(b'"%d":1' % (prime * number) for number in range(1, count))


def colliding_biases(rng: Random) -> Case:
    """A map of biases whose names, read as numbers, all have one hash."""
    return _extra(
        "colliding_biases", rng, b'"logit_bias":{' + _colliding(rng.choice((50, 1_000, 9_000))) + b"}"
    )


def same_name_again(rng: Random) -> Case:
    """One field given thousands of times, forbidden or not by turns."""
    first, last = rng.choice(
        (
            (b'"stream":true', b'"stream":false'),
            (b'"model":"other"', b'"model":"' + MODEL.encode() + b'"'),
            (b'"max_tokens":100000', b'"max_tokens":1'),
            (b'"user":"x"', b'"user":"y"'),
            (b'"n":1000', b'"n":1'),
            (b'"messages":[]', b'"messages":[{"role":"user","content":"x"}]'),
        )
    )
    count = rng.choice((1, 100, 5_000))
    return _extra("same_name_again", rng, b",".join([first] * count + [last]))


def forbidden_then_hidden(rng: Random) -> Case:
    """A forbidden field, given twice, its name written with escapes, or with something invisible in it."""
    names = {
        REJECTED: (
            b"cache\\u005fsalt",
            b"\\u0063ache_salt",
            b"prior\\u0069ty",
            b"kv_transfer_param\\u0073",
            b"vllm_xargs",
        ),
        # Engines know none of these, and get none.
        SERVED: (
            b"cache_salt\\u0000",
            b"cache_salt ",
            b"\\ufeffcache_salt",
            "cache\u200b_salt".encode(),
            "ｃache_salt".encode(),
            b"Cache_Salt",
            b"__class__",
            b"",
            b"extra_body",
        ),
    }
    accepted = rng.choice((REJECTED, SERVED))
    name = rng.choice(names[accepted])
    again = b',"' + name + b'":null' if rng.random() < 0.5 else b""
    return _extra("forbidden_then_hidden", rng, b'"' + name + b'":"x"' + again, accepted)


@cache
def _unknown(count: int) -> bytes:
    return b",".join(b'"f%d":0' % number for number in range(count))


def unknown_fields(rng: Random) -> Case:
    """Thousands of fields that nobody knows, or one with a name as long as a book."""
    if rng.random() < 0.5:
        return _extra("unknown_fields", rng, _unknown(rng.choice((10, 1_000, 18_000))), SERVED)
    piece = rng.choice((b"a", b"\\u0000", b"\\r\\n", "\U0001f4a9".encode(), b"%s{0}", b"\\ud800"))
    accepted = REJECTED if piece == b"\\ud800" else SERVED
    return _extra("unknown_fields", rng, b'"' + _of(piece, _size(rng)) + b'":0', accepted)


def ignored_fields(rng: Random) -> Case:
    """All the fields that are ignored, with values that are long, deep or of odd types."""
    value = rng.choice(
        (
            b"[" * 40 + b"]" * 40,
            b'"' + b"x" * (_size(rng) // 6) + b'"',
            b"{" + _unknown(2_000) + b"}",
            b"null",
            b"[]",
            b"1e5",
        )
    )
    names = (b"metadata", b"store", b"service_tier", b"prompt_cache_key", b"safety_identifier", b"prediction")
    return _extra("ignored_fields", rng, b",".join(b'"%b":%b' % (name, value) for name in names), (200,))


def halves_of_characters(rng: Random) -> Case:
    """Escaped halves of surrogate pairs, in every place that takes a string."""
    half = _of(
        rng.choice((b"\\ud800", b"\\udc00\\ud800", b"\\udfff", b"\\ud83dx")), rng.choice((6, 12, 60_000)) + 6
    )
    field = rng.choice(
        (
            b'"user":"%b"',
            b'"stop":["%b"]',
            b'"bad_words":["%b"]',
            b'"model":"%b"',
            b'"tools":[{"type":"function","function":{"name":"%b"}}]',
            b'"guided_choice":["%b"]',
            b'"guided_regex":"%b"',
            b'"messages":[{"role":"%b","content":"x"}]',
            b'"messages":[{"role":"user","content":"%b"}]',
            b'"chat_template_kwargs":{"%b":1}',
            b'"logit_bias":{"%b":1}',
            b'"metadata":{"%b":"x"}',
        )
    )
    return _extra("halves_of_characters", rng, field % half)


def all_escaped(rng: Random) -> Case:
    """Text in which each character is an escape of six bytes, or combines with the one before it."""
    tenant = _tenant(rng)
    piece = rng.choice(
        (
            b"\\u0061",
            b"\\u0000",
            b"\\/",
            "\u0301".encode(),
            "\u202e".encode(),
            b"\\u2028",
            "\ufdfa".encode(),
            b"\\ud83d\\ude00",
        )
    )
    return _case("all_escaped", tenant, _with_content(tenant, rng, b'"' + _of(piece, _size(rng)) + b'"'))


def other_encodings(rng: Random) -> Case:
    """A good body in another encoding, or with bytes that no text has."""
    tenant = _tenant(rng)
    text = _chat_body(tenant, rng).decode()
    body = rng.choice(
        (
            text.encode("utf-16"),
            text.encode("utf-16-be"),
            text.encode("utf-32"),
            text.encode("utf-8-sig"),
            text.encode("utf-7"),
            text.encode().replace(b'"user"', b'"us\xffer"'),
            text.encode().replace(b'"user"', b'"us\xc0\x80er"'),
            text.encode().replace(b'"user"', b'"us\xed\xa0\x80er"'),
            text.encode() + b"\x00",
            b"\x00" + text.encode(),
            text.encode() + b"\x1a",
            text.encode() + text.encode(),
        )
    )
    return _case("other_encodings", tenant, body)


def sea_of_spaces(rng: Random) -> Case:
    """A body of space, before, within and behind what is meant, and at its end something that is no JSON."""
    tenant = _tenant(rng)
    space = _of(rng.choice((b" ", b"\t", b"\r\n", b" \n\t\r")), _size(rng))
    tail, accepted = rng.choice(((b"", ()), (b",", REJECTED), (b"}", REJECTED), (b"\x0c", REJECTED)))
    return _case(
        "sea_of_spaces", tenant, space + _chat_body(tenant, rng, space) + space + tail, accepted=accepted
    )


def many_parts(rng: Random) -> Case:
    """A message of as many parts as objects are allowed, or some more."""
    tenant = _tenant(rng)
    over = rng.random() < 0.5
    parts = b",".join([b"{}"] * (CONTAINERS + 10 if over else CONTAINERS - 10))
    content = b'[{"type":"text","text":"x"},' + parts + b"]"
    return _case("many_parts", tenant, _with_content(tenant, rng, content), accepted=REJECTED if over else ())


def just_as_deep(rng: Random) -> Case:
    """Values nested just below and far above what is allowed, in fields whose values may be anything."""
    deep, accepted = rng.choice(((40, ()), (58, ()), (70, REJECTED), (5_000, REJECTED), (100_000, REJECTED)))
    left, right = rng.choice(((b"[", b"]"), (b'{"a":', b"}")))
    deep = min(deep, 40_000) if len(left) > 1 else deep
    value = left * deep + b"0" + right * deep
    field = rng.choice(
        (b'"guided_json":{"default":%b}', b'"chat_template_kwargs":{"x":%b}', b'"metadata":%b')
    )
    return _extra("just_as_deep", rng, field % value, accepted)


@cache
def _stops(count: int, length: int) -> bytes:
    return b",".join(b'"' + b"a" * length + b'%d"' % number for number in range(count))


def long_stop_lists(rng: Random) -> Case:
    """Thousands of stop words, words to avoid or choices, each the beginning of the next."""
    count, length = rng.choice(((5, 1), (4_000, 50), (16_000, 8), (3, 80_000)))
    field = rng.choice(
        (
            b'"stop":[%b]',
            b'"bad_words":[%b]',
            b'"guided_choice":[%b]',
            b'"structured_outputs":{"choice":[%b]}',
        )
    )
    return _extra(
        "long_stop_lists", rng, field % _stops(count, length) + rng.choice((b"", b',"stream":true'))
    )


@cache
def _tools(count: int, same: bool) -> bytes:
    return b",".join(
        b'{"type":"function","function":{"name":"f%d","parameters":{}}}' % (0 if same else number)
        for number in range(count)
    )


def many_tools(rng: Random) -> Case:
    """Thousands of tools, equal or not, of which the last is chosen; or one with a name without end."""
    count = rng.choice((2, 500, 3_500))
    choice = b',"tool_choice":{"type":"function","function":{"name":"f%d"}}' % (count - 1)
    if rng.random() < 0.3:
        name = _of(rng.choice((b"a", b"../", b"-_", b"\\n")), _size(rng))
        return _extra("many_tools", rng, b'"tools":[{"type":"function","function":{"name":"' + name + b'"}}]')
    return _extra("many_tools", rng, b'"tools":[' + _tools(count, rng.random() < 0.5) + b"]" + choice)


@cache
def _doubling(count: int) -> bytes:
    """Definitions of which each names the next one twice."""
    inner = b",".join(
        b'"d%d":{"properties":{"a":{"$ref":"#/$defs/d%d"},"b":{"$ref":"#/$defs/d%d"}}}'
        % (number, number + 1, number + 1)
        for number in range(count)
    )
    return b'{"$ref":"#/$defs/d0","$defs":{%b,"d%d":{"type":"string"}}}' % (inner, count)


def doubling_references(rng: Random) -> Case:
    """A schema that is small as written and endless once its references are followed."""
    schema = rng.choice(
        (
            _doubling(30),
            _doubling(2_000),
            b'{"$ref":"#"}',
            b'{"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}},"$ref":"#/$defs/a"}',
            b'{"$ref":"file:///etc/passwd"}',
            b'{"$ref":"http://127.0.0.1:1/x"}',
            b'{"$ref":"#' + b"/~1" * 20_000 + b'"}',
        )
    )
    form = rng.choice(
        (b'"guided_json":%b', b'"tools":[{"type":"function","function":{"name":"f","parameters":%b}}]')
    )
    return _extra("doubling_references", rng, form % schema)


def items_of_items(rng: Random) -> Case:
    """Lists of lists of items, each of just as many as are allowed, or one more."""
    count, accepted = rng.choice(((10_000, ()), (10_001, REJECTED), (9_999, ()), (2**63, REJECTED)))
    deep = rng.choice((1, 3, 12))
    bound = rng.choice((b"minItems", b"maxItems"))
    level = b'{"type":"array","%b":%d,"items":' % (bound, count)
    return _extra("items_of_items", rng, b'"guided_json":' + level * deep + b"{}" + b"}" * deep, accepted)


def odd_bounds(rng: Random) -> Case:
    """Bounds of a schema that are not those the documentation names, or not of a number's type."""
    name = rng.choice(
        (b"minLength", b"maxLength", b"minProperties", b"maxProperties", b"minItems", b"multipleOf", b"enum")
    )
    value = rng.choice(
        (b"100000000", b'"10001"', b"1e9", b"-1", b"10001.0", b"true", b"[10001]", b"1e-300", b"1e308")
    )
    return _extra(
        "odd_bounds",
        rng,
        b'"guided_json":{"type":"array","items":{"%b":%b},"%b":%b}' % (name, value, name, value),
    )


def addresses_that_are_not_data(rng: Random) -> Case:
    """Media that an engine would have to fetch, in addresses that look like data to a careless reader."""
    tenant = _tenant(rng)
    address = rng.choice(
        (
            b"http://127.0.0.1:1/#data:",
            b"\\thttp://127.0.0.1:1/",
            b"file:///etc/passwd",
            b"//127.0.0.1:1/x",
            b"xdata:,",
            b"dat\\u0061x:,",
            b"",
            b"http:" + b"/" * 60_000,
            b"a" * 100_000,
        )
    )
    part = rng.choice(
        (
            b'{"type":"image_url","image_url":{"url":"%b"}}',
            b'{"type":"image_url","image_url":"%b"}',
            b'{"type":"video_url","video_url":{"url":"%b"}}',
            b'{"type":"audio_url","audio_url":{"url":"%b"}}',
        )
    )
    body = _with_content(tenant, rng, b'[{"type":"text","text":"x"},' + part % address + b"]")
    return _case("addresses_that_are_not_data", tenant, body, accepted=REJECTED)


def odd_data_addresses(rng: Random) -> Case:
    """Data addresses with endless media types, commas, padding or percent signs."""
    tenant = _tenant(rng)
    piece = rng.choice((b";", b";a=b", b",", b"=", b"%25", b"%", b" ", b"A"))
    start = rng.choice((b"data:", b"DATA:", b"data:image/png;base64,", b"data:text/html", b"Data:,"))
    part = b'[{"type":"image_url","image_url":{"url":"' + start + _of(piece, _size(rng)) + b'"}}]'
    return _case("odd_data_addresses", tenant, _with_content(tenant, rng, part))


@cache
def _inputs(count: int, item: bytes) -> bytes:
    return b"[" + b",".join([item] * count) + b"]"


def lists_of_inputs(rng: Random) -> Case:
    """As many inputs to embed as are allowed, or one more, or lists of what is no input."""
    tenant = _tenant(rng)
    count, accepted = rng.choice(((2_048, ()), (2_049, REJECTED), (15_000, REJECTED)))
    item = rng.choice((b'"x"', b'""', b"[1]"))
    if rng.random() < 0.2:
        count, accepted, item = 1_000, (), rng.choice((b"null", b"{}", b"true", b"[[1]]", b"-1", b'["x"]'))
    body = b'{"model":"%b","input":%b}' % (MODEL.encode(), _inputs(count, item))
    return _case("lists_of_inputs", tenant, body, path=EMBEDDINGS, accepted=accepted)


def answers_times_prompts(rng: Random) -> Case:
    """Several answers to each of several prompts, just as many as are allowed or just too many."""
    tenant = _tenant(rng)
    prompts, answers, accepted = rng.choice(
        ((128, 1, ()), (129, 1, REJECTED), (64, 2, ()), (43, 3, REJECTED), (1, 129, REJECTED))
    )
    name = rng.choice((b"n", b"best_of"))
    item = rng.choice((b'"x"', b"[1,2]"))
    body = _with_prompt(rng, _inputs(prompts, item), b',"%b":%d' % (name, answers))
    return _case("answers_times_prompts", tenant, body, path=COMPLETIONS, accepted=accepted)


def mixed_prompts(rng: Random) -> Case:
    """Prompts that are partly text, partly tokens, partly neither."""
    tenant = _tenant(rng)
    prompt = rng.choice(
        (
            b'["x",1,[2],null]',
            b"[]",
            b"[[]]",
            b"[[],[]]",
            b'[["x"]]',
            b"[[[1]]]",
            b"[-1]",
            b"[4294967296]",
            b"[1.5]",
            b"[true]",
            b"{}",
            b"null",
            b'""',
            b"0",
            b"[" + b"1," * 120_000 + b"1]",
            b'"' + b"\\u0000" * 40_000 + b'"',
        )
    )
    extra = rng.choice((b"", b',"stream":true', b',"echo":true', b',"suffix":"x"', b',"prompt_logprobs":5'))
    return _case("mixed_prompts", tenant, _with_prompt(rng, prompt, extra), path=COMPLETIONS)


def many_messages(rng: Random) -> Case:
    """Thousands of empty messages, in odd roles or with odd types."""
    message = rng.choice(
        (
            b'{"role":"user","content":""}',
            b'{"role":"assistant","content":null}',
            b'{"role":"tool","tool_call_id":"x","content":"y"}',
            b'{"role":"assistant","tool_calls":[]}',
            b"null",
            b"{}",
            b'{"role":["user"],"content":{}}',
            b'{"content":"x"}',
        )
    )
    return _extra("many_messages", rng, b'"messages":' + _inputs(rng.choice((1, 100, 4_000)), message))


def calls_with_odd_arguments(rng: Random) -> Case:
    """Tool calls of an earlier turn, whose arguments are strings that an engine parses again."""
    arguments = rng.choice(
        (
            b"[" * 60_000,
            b"9" * 60_000,
            b'{\\"a\\":' * 9_000,
            b"\\\\u0000" * 9_000,
            b"null",
            b"",
            b'{\\"a\\":1e999}',
            b'\\"\\\\ud800\\"',
        )
    )
    call = b'{"id":"c","type":"function","function":{"name":"f","arguments":"' + arguments + b'"}}'
    message = b'"messages":[{"role":"user","content":"x"},{"role":"assistant","tool_calls":[' + call + b"]}]"
    return _extra("calls_with_odd_arguments", rng, message)


def template_arguments(rng: Random) -> Case:
    """Arguments of the template that belong to whatever renders it."""
    value = rng.choice((b"true", b'"x"', b"null", b"[1]", b'"{{ 7 * 7 }}"'))
    name = rng.choice(
        (b"tokenize", b"chat_template", b"toke\\u006eize", b"cache_salt", b"kv_transfer_params")
    )
    more = rng.choice((b"", b"," + _unknown(3_000)))
    return _extra(
        "template_arguments", rng, b'"chat_template_kwargs":{"%b":%b%b}' % (name, value, more), REJECTED
    )


def ends_of_sentences(rng: Random) -> Case:
    """A prompt of nothing but ends of sentences, or one sentence that almost ends all the time."""
    tenant = _tenant(rng)
    piece = rng.choice(
        (
            b".",
            b". ",
            b"?!",
            b"a. ",
            b"\\n",
            b".\\n\\n ",
            b" ",
            b"Mr. ",
            b"1.",
            "。".encode(),
            b'.\\" ',
            b"a",
            b"...a",
        )
    )
    text = b'"' + CANARIES[tenant].encode() + _of(piece, _size(rng)) + b'"'
    if rng.random() < 0.5:
        return _case("ends_of_sentences", tenant, _with_content(tenant, rng, text))
    return _case("ends_of_sentences", tenant, _with_prompt(rng, text, b',"stream":true'), path=COMPLETIONS)


def wrong_types(rng: Random) -> Case:
    """A field with a value of a type that it never has, or a whole body that is no object."""
    if rng.random() < 0.2:
        tenant = _tenant(rng)
        body = rng.choice((b"[]", b"0", b'"x"', b"null", b"", b"{", b"{}{}", b"true", b"[{}]", b'{"":0}'))
        return _case(
            "wrong_types", tenant, body, path=rng.choice((CHAT, COMPLETIONS, EMBEDDINGS)), accepted=REJECTED
        )
    name = rng.choice(
        (
            b"stream",
            b"stream_options",
            b"response_format",
            b"model",
            b"messages",
            b"stop",
            b"n",
            b"tools",
            b"logprobs",
            b"structured_outputs",
            b"guided_regex",
            b"tool_choice",
            b"documents",
            b"repetition_detection",
            b"max_tokens",
        )
    )
    value = rng.choice(
        (
            b"[]",
            b"{}",
            b'""',
            b"0",
            b"-1",
            b"true",
            b'{"include_usage":"yes"}',
            b"[[[]]]",
            b"2.5",
            b'{"type":[]}',
        )
    )
    return _extra("wrong_types", rng, b'"%b":%b' % (name, value))


def unpacks_to_much(rng: Random) -> Case:
    """A compressed body that would unpack to much, with a header that says so."""
    tenant = _tenant(rng)
    encoding = rng.choice((b"gzip", b"x-gzip", b"deflate", b"br", b"zstd", b"gzip, gzip"))
    return _case(
        "unpacks_to_much", tenant, _packed(), headers=((b"content-encoding", encoding),), accepted=(400, 415)
    )


@cache
def _packed() -> bytes:
    return gzip.compress(b" " * (16 * 1024 * 1024), mtime=0)


# Heads


def as_many_headers(rng: Random) -> Case:
    """Far more headers than are allowed, or a little fewer, all of one name or of names of their own."""
    tenant = _tenant(rng)
    count, accepted = rng.choice(((85, ()), (101, (431,)), (400, (431,)), (2_500, (431,))))
    same = rng.random() < 0.5
    headers = tuple((b"x-h" if same else b"x-%d" % number, b"1") for number in range(count))
    return _case("as_many_headers", tenant, _chat_body(tenant, rng), headers=headers, accepted=accepted)


def as_long_heads(rng: Random) -> Case:
    """One header that makes the head just shorter or just longer than is allowed."""
    tenant = _tenant(rng)
    size, accepted = rng.choice(((HEAD - 1_024, ()), (HEAD + 1, (431,)), (HEAD * 8, (431,)), (9_000, ())))
    name, piece = rng.choice(
        (
            (b"cookie", b"a=b; "),
            (b"cookie", b";"),
            (b"accept", b"*/*;q=0.1,"),
            (b"accept-language", b","),
            (b"forwarded", b'for="[::1]",'),
            (b"x-forwarded-for", b"127.0.0.1, "),
            (b"traceparent", b"00-"),
            (b"user-agent", b"("),
            (b"if-none-match", b'W/"'),
            (b"content-type", b"application/json; charset="),
            (b"range", b"bytes=0-,"),
            (b"x-request-id", b"a-"),
            (b"server-timing", b"total;dur=1,"),
            (b"cache-control", b"max-age=0,"),
            (b"x-phasewise-cache-tags", b"t,"),
            (b"x-phasewise-cache-namespace", b"n"),
            (b"x-phasewise-timing", b"1"),
            (b"accept-encoding", b"gzip;q=0,"),
        )
    )
    headers = ((name, (piece * (size // len(piece) + 1))[:size].rstrip()),)
    return _case("as_long_heads", tenant, _chat_body(tenant, rng), headers=headers, accepted=accepted)


def odd_keys(rng: Random) -> Case:
    """Keys that are almost right: in other letters, with bytes that are no text, twice, or among a crowd."""
    key = KEYS[_tenant(rng)].encode()
    value = rng.choice(
        (
            b"Bearer " + key + b"x",
            b"Bearer " + key[:-1],
            b"Bearer " + key.upper(),
            b"Bearer " + key + b"\xff\xfe",
            b"Bearer \xe9" + key,
            b"Bearer " + key + b"," + key,
            b"Bearer Bearer " + key,
            b"Basic " + key,
            b"Bearer",
            b"Bearer" + b" " * 20_000 + b"x",
            b"Bearer " + b"k" * 30_000,
            b"",
            b"Digest " + b'a="b",' * 3_000,
        )
    )
    return Case("odd_keys", b'{"model":"x"}', headers=((b"authorization", value),), accepted=NO_KEY)


def keys_twice(rng: Random) -> Case:
    """Two keys of two tenants in one request."""
    tenant = _tenant(rng)
    other = key_header(KEYS["b" if tenant == "a" else "a"])
    return _case("keys_twice", tenant, _chat_body(tenant, rng), headers=(other,))


def odd_request_ids(rng: Random) -> Case:
    """Request ids that are too long, that of somebody else, several, or no ids at all."""
    tenant = _tenant(rng)
    value = rng.choice(
        (
            b"a" * 64,
            b"a" * 65,
            b"a" * 25_000,
            b"-" * 64,
            b"../../phasewise/v1/workers",
            b"chatcmpl-" + b"0" * 32,
            b"%032x" % rng.getrandbits(128),
            b"x%0d%0aset-cookie: a=b",
            b"\xc3\xa9\xff",
            b"open",
            b"",
        )
    )
    headers = ((b"x-request-id", value),) * rng.choice((1, 2, 40 if len(value) < 600 else 1))
    extra = rng.choice((b"", b',"stream":true'))
    return _case("odd_request_ids", tenant, _chat_body(tenant, rng, extra), headers=headers)


def cache_wishes(rng: Random) -> Case:
    """Headers for the answer cache with names it does not take, or too many of them."""
    tenant = _tenant(rng)
    name, value = rng.choice(
        (
            (b"x-phasewise-cache-namespace", b"n" * 42),
            (b"x-phasewise-cache-namespace", b"../" + KEYS["b"].encode()),
            (b"x-phasewise-cache-namespace", b"\xff"),
            (b"x-phasewise-cache-tags", b",".join(b"t%d" % number for number in range(17))),
            (b"x-phasewise-cache-tags", b" ,\t," * 6_000),
            (b"x-phasewise-cache-tags", b"*"),
            (b"cache-control", b'max-age="0", no-store="' + b"x," * 9_000 + b'"'),
            (b"cache-control", b"max-age=" + b"9" * 20_000),
            (b"cache-control", b"max-age=-1, max-age=0, only-if-cached"),
        )
    )
    return _case("cache_wishes", tenant, _chat_body(tenant, rng), headers=((name, value),))


# Addresses


def paths_to_the_admin(rng: Random) -> Case:
    """Ways around to what only the admin may see, with a client's key or none."""
    path = rng.choice(
        (
            "/phasewise/v1/workers",
            "//phasewise/v1/workers",
            "/v1/../phasewise/v1/workers",
            "/v1/%2e%2e/phasewise/v1/requests",
            "/phasewise%2fv1%2freload",
            "/phasewise/v1/workers/",
            "/phasewise/v1/workers;x=y",
            "/phasewise/v1/workers%00",
            "/PHASEWISE/v1/workers",
            "/phasewise/v1/requests/open?limit=2000",
            "/phasewise/v1/requests/" + "a" * 20_000,
            "/phasewise/v1/requests/chatcmpl-" + "0" * 32 + "-1" * 9_000,
            "/phasewise/v1/requests/%ff%fe",
            "/" + "../" * 9_000 + "phasewise/v1/cache",
            "/" + "%25" * 9_000,
            "/v1/models/../../phasewise/v1/reload",
            "/v1/models/" + "/" * 20_000,
        )
    )
    method = rng.choice(("GET", "POST", "HEAD", "DELETE", "PATCH", "OPTIONS"))
    headers: Headers = (
        (b"x-original-url", b"/health"),
        (b"x-http-method-override", b"GET"),
        (b"x-forwarded-for", b"127.0.0.1"),
    )
    tenant = rng.choice((None, *TENANTS))
    if tenant is not None:
        headers = (key_header(KEYS[tenant]), *headers)
    accepted = (400, 401, 404, 405)
    return Case(
        "paths_to_the_admin", b"", path=path, method=method, tenant=tenant, headers=headers, accepted=accepted
    )


def odd_queries(rng: Random) -> Case:
    """Queries of endless parameters, numbers and percent signs, where no key is needed or none is given."""
    query = rng.choice(
        (
            "&" * 20_000,
            "a=b&" * 5_000,
            "limit=" + "9" * 20_000,
            "limit=-1&after=NaN&since_unix_s=1e999",
            "slowest=" + "%2525" * 4_000,
            "%",
            "%zz" * 5_000,
            "a[" * 9_000,
            "limit=%00",
            "?" * 9_000,
            ";" * 9_000,
        )
    )
    path, accepted = rng.choice(
        (
            ("/phasewise/v1/requests", NO_KEY),
            ("/phasewise/v1/requests/open", NO_KEY),
            ("/health", ()),
            ("/metrics", ()),
            ("/openapi.json", ()),
        )
    )
    return Case("odd_queries", b"", path=f"{path}?{query}", method="GET", accepted=accepted)


def wrong_methods(rng: Random) -> Case:
    """Known addresses with methods that they do not take."""
    method = rng.choice(("PUT", "DELETE", "PATCH", "TRACE", "PROPFIND", "QUERY", "get", "A" * 200))
    path = rng.choice(
        (CHAT, EMBEDDINGS, "/v1/models", "/health", "/metrics", "/openapi.json", "/phasewise/v1/reload")
    )
    headers: Headers = (key_header(KEYS["a"]),) if rng.random() < 0.5 else ()
    return Case("wrong_methods", b"", path=path, method=method, headers=headers, accepted=(400, 401, 405))


def bodies_on_gets(rng: Random) -> Case:
    """A body where none is expected, and where no key is asked for."""
    path = rng.choice(
        ("/health", "/metrics", "/openapi.json", "/v1/models", "/nothing", "/phasewise/v1/workers")
    )
    body = rng.choice(
        (b"GET /phasewise/v1/workers HTTP/1.1\r\nhost: x\r\n\r\n", b"x" * 60_000, b"[" * 60_000)
    )
    return Case("bodies_on_gets", body, path=path, method=rng.choice(("GET", "HEAD")))


def no_key_and_a_body(rng: Random) -> Case:
    """A body of a quarter of a megabyte from somebody without a key."""
    body = b"[" * rng.choice((1, 1_000, ON_LOOP))
    return Case("no_key_and_a_body", body, path=rng.choice((CHAT, COMPLETIONS, EMBEDDINGS)), accepted=NO_KEY)


# Bytes


def two_ways_to_read(rng: Random) -> RawCase:
    """Frames that two programs would read differently."""
    tenant = _tenant(rng)
    body = _chat_body(tenant, rng)
    length = b"content-length: %d" % len(body)
    chunk = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    lengths = rng.choice(
        (
            (b"content-length: +%d" % len(body),),
            (b"content-length: -%d" % len(body),),
            (b"content-length: 0x%x" % len(body),),
            (b"content-length: %d, %d" % (len(body), len(body)),),
            (b"content-length: %d_0" % len(body),),
            (b"content-length: %de0" % len(body),),
            (b"content-length : %d" % len(body),),
            (b"content-length:",),
            ("content-length: ٣".encode(),),
            (b"content-length: " + b"9" * 5_000,),
            (length, b"Content-Length: 0"),
            (length, b"transfer-encoding: chunked"),
            (length, b" x: y"),
            (length, b"\tx: y"),
            (length, b"x\x00: y"),
            (length, b"x: \x0by"),
            (length, b": y"),
            (length, b"x y: z"),
            (length, b"no colon"),
            (length, b"upgrade: h2c", b"connection: upgrade"),
            (length, b"host: other"),
        )
    )
    encodings = rng.choice(
        (
            b"chunked, chunked",
            b"chunked, identity",
            b"identity",
            b"gzip, chunked",
            b"xchunked",
            b'"chunked"',
            b"chunked;q=1",
            b"",
        )
    )
    if rng.random() < 0.3:
        return RawCase(
            "two_ways_to_read", _post(tenant, b"transfer-encoding: " + encodings) + chunk, REJECTED
        )
    return RawCase("two_ways_to_read", _post(tenant, *lengths) + body, REJECTED)


def broken_chunks(rng: Random) -> RawCase:
    """Chunks with wrong sizes, wrong ends, or trailers."""
    tenant = _tenant(rng)
    body = _chat_body(tenant, rng)
    size = b"%x" % len(body)
    data = rng.choice(
        (
            b"0x" + size + b"\r\n" + body + b"\r\n0\r\n\r\n",
            b"+" + size + b"\r\n" + body + b"\r\n0\r\n\r\n",
            b"-1\r\n" + body + b"\r\n0\r\n\r\n",
            size + b"\n" + body + b"\n0\n\n",
            size + b"\r\n" + body + b"0\r\n\r\n",
            size + b"\r\n" + body + b"xx0\r\n\r\n",
            size + b"\r\n" + body + b"\r\n0\r\nx-trailer: y\r\n\r\n",
            size + b"\r\n" + body + b"\r\n0\r\ncontent-length: 0\r\n\r\n",
            size + b"\x00\r\n" + body + b"\r\n0\r\n\r\n",
            b"_" + size + b"\r\n" + body + b"\r\n0\r\n\r\n",
            b"\r\n" + size + b"\r\n" + body + b"\r\n0\r\n\r\n",
            b"fffffffffffffffff\r\n" + body,
            b"zz\r\n" + body,
        )
    )
    return RawCase("broken_chunks", _post(tenant, b"transfer-encoding: chunked") + data, REJECTED)


@cache
def _ones(body: bytes, extension: bytes) -> bytes:
    return b"".join(b"1%b\r\n%c\r\n" % (extension, byte) for byte in body)


def chunks_of_one(rng: Random) -> RawCase:
    """A body in chunks of one byte each, some with long extensions or sizes of many zeros."""
    tenant = _tenant(rng)
    extension = rng.choice((b"", b";a", b';a="b;c"', b";" + b"x" * 200, b";" + b"x" * 9_000))
    data = _ones(b" " * (8 if len(extension) > 1_000 else 900), extension)
    end = b"%b%x\r\n%b\r\n0\r\n\r\n" % (
        rng.choice((b"", b"0" * 12)),
        len(body := _chat_body(tenant, rng)),
        body,
    )
    return RawCase("chunks_of_one", _post(tenant, b"transfer-encoding: chunked") + data + end)


def endless_chunk_lines(rng: Random) -> RawCase:
    """A chunk whose first line does not end for long."""
    tenant = _tenant(rng)
    line = rng.choice(
        (b"1;" + b"a" * 200_000, b"0" * 200_000, b"1" + b" " * 200_000, b"1;" + b"a=b;" * 50_000)
    )
    return RawCase(
        "endless_chunk_lines",
        _post(tenant, b"transfer-encoding: chunked") + line,
        half_closes=True,
    )


def promises_too_much(rng: Random) -> RawCase:
    """A declared length above what is allowed, and no body."""
    length = rng.choice((BODY + 1, BODY * 2, 2**31, 2**32 + 1, 2**63 - 1))
    return RawCase("promises_too_much", _post(_tenant(rng), b"content-length: %d" % length), (413,))


def promises_and_leaves(rng: Random) -> RawCase:
    """A declared length up to what is allowed, then a part of the body at most, and the end."""
    tenant = _tenant(rng)
    length = rng.choice((BODY, BODY - 1, BODY // 2, 300_000, 10_000))
    sent = _chat_body(tenant, rng)[: rng.choice((0, 1, 60))]
    return RawCase(
        "promises_and_leaves", _post(tenant, b"content-length: %d" % length) + sent, half_closes=True
    )


def waits_to_continue(rng: Random) -> RawCase:
    """An expectation that is met, made twice, or of something else, and half a body."""
    tenant = _tenant(rng)
    expect = rng.choice(
        (b"expect: 100-continue", b"expect: 200-ok", b"expect: 100-continue, 100-continue", b"expect:")
    )
    body = _chat_body(tenant, rng)
    head = _post(tenant, expect, b"content-length: %d" % len(body))
    return RawCase("waits_to_continue", head + body[: rng.choice((0, 20, len(body)))], half_closes=True)


def says_goodbye_early(rng: Random) -> RawCase:
    """A good request for a long stream whose client closes its sending side at once."""
    tenant = _tenant(rng)
    body = _chat_body(tenant, rng, b',"stream":true,"max_tokens":%d' % rng.choice((1, 50)))
    head = _post(tenant, b"content-length: %d" % len(body))
    return RawCase("says_goodbye_early", head + body, half_closes=True)


def slow_heads(rng: Random) -> RawCase:
    """A head that arrives byte by byte, with a body that is none."""
    tenant = rng.choice((None, *TENANTS))
    line = rng.choice(
        (b"POST /v1/chat/completions HTTP/1.1", b"GET /health HTTP/1.1", b"GET /" + b"a" * 80 + b" HTTP/1.1")
    )
    return RawCase("slow_heads", _head(line, tenant, b"content-length: 2") + b"[]", slowly=True)


def slow_chunks(rng: Random) -> RawCase:
    """A chunked body that arrives byte by byte and is no JSON."""
    size = rng.randint(1, 9)
    head = _post(_tenant(rng), b"transfer-encoding: chunked")
    return RawCase(
        "slow_chunks", head + b"%x\r\n%b\r\n0\r\n\r\n" % (size, b"[" * size), REJECTED, slowly=True
    )


def many_at_once(rng: Random) -> RawCase:
    """As many requests on one connection as may be pipelined, or many more, then the end."""
    count = rng.choice((20, 99, 100, 101, 150, 600))
    tenant = _tenant(rng)
    body = _chat_body(tenant, rng)
    one = rng.choice(
        (
            _head(b"GET /health HTTP/1.1", None),
            _head(b"GET /metrics HTTP/1.1", None),
            _head(b"GET /openapi.json HTTP/1.1", None),
            _head(b"HEAD /health HTTP/1.1", None),
            _head(b"GET /v1/models HTTP/1.1", tenant),
            _post(tenant, b"content-length: %d" % len(body)) + body,
            _post(None, b"content-length: 0"),
        )
    )
    return RawCase("many_at_once", one * count, half_closes=True)


def more_than_it_said(rng: Random) -> RawCase:
    """A body longer than its declared length, so that its rest is taken for the next request."""
    tenant = _tenant(rng)
    rest = rng.choice(
        (
            b"x" * 50_000,
            _head(b"GET /phasewise/v1/workers HTTP/1.1", None),
            b"\r\n" * 9_000,
            b"\x00" * 100,
            b"GET ",
        )
    )
    return RawCase("more_than_it_said", _post(tenant, b"content-length: 2") + b"[]" + rest, REJECTED)


def other_protocols(rng: Random) -> RawCase:
    """First bytes of other protocols and versions."""
    data = rng.choice(
        (
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"GET /health\r\n\r\n",
            b"GET /health HTTP/1.2\r\nhost: x\r\n\r\n",
            b"GET /health HTTP/11\r\nhost: x\r\n\r\n",
            b"GET /health http/1.1\r\nhost: x\r\n\r\n",
            b"GET /health HTTP/1.1\nhost: x\n\n",
            b"GET /health HTTP/1.1 \r\nhost: x\r\n\r\n",
            b"GET  /health HTTP/1.1\r\nhost: x\r\n\r\n",
            b"GET /hea lth HTTP/1.1\r\nhost: x\r\n\r\n",
            b"GET /health\x00 HTTP/1.1\r\nhost: x\r\n\r\n",
            b"GET http://127.0.0.1/health HTTP/1.1\r\nhost: x\r\n\r\n",
            b"GET health HTTP/1.1\r\nhost: x\r\n\r\n",
            b"OPTIONS * HTTP/1.1\r\nhost: x\r\n\r\n",
            b"CONNECT 127.0.0.1:1 HTTP/1.1\r\nhost: x\r\n\r\n",
            b"GET /health HTTP/1.1\r\n\r\n",
            b"GET /health HTTP/1.1\r\nhost: x\r\nhost: x\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
            b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2\r\nGET /health HTTP/1.1\r\nhost: x\r\n\r\n",
            b"\r\n\r\n\x00\r\nQUIT\n\r\n\r\n",
            b"*1\r\n$4\r\nPING\r\n\r\n",
            b"SSH-2.0-x\r\n\r\n",
            b"POST /v1/chat/completions HTTP/1.0\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}",
        )
    )
    return RawCase("other_protocols", data, (400, 404, 405), half_closes=rng.random() < 0.5)


def head_without_end(rng: Random) -> RawCase:
    """A head whose first line, name of a header or list of blank lines does not end."""
    data = rng.choice(
        (
            b"A" * 40_000,
            b"GET /" + b"a" * 40_000,
            b"GET / HTTP/1.1\r\n" + b"x" * 40_000,
            b"GET / HTTP/1.1\r\nx:" + b" " * 40_000,
            b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 40_000,
            b"GET / HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * 9_000,
        )
    )
    return RawCase("head_without_end", data, (400, 431), half_closes=rng.random() < 0.5)


def blank_lines_first(rng: Random) -> RawCase:
    """Blank lines before a request, a few or thousands."""
    data = b"\r\n" * rng.choice((1, 10, 1_000, 20_000, 200_000))
    return RawCase(
        "blank_lines_first",
        data + _head(b"GET /health HTTP/1.1", None, b"connection: close"),
        half_closes=True,
    )


# Bodies of one to eight MiB


@cache
def _fill(piece: bytes, size: int) -> bytes:
    return _of(piece, size)


def million_values(rng: Random) -> Case:
    """A prompt of a million tokens, just below or above what is allowed."""
    tenant = _tenant(rng)
    over = rng.random() < 0.5
    prompt = b"[" + _fill(b"1,", 2 * (VALUES + 10 if over else VALUES - 30)) + b"1]"
    return _case(
        "million_values",
        tenant,
        _with_prompt(rng, prompt),
        path=COMPLETIONS,
        accepted=REJECTED if over else (),
    )


def flood_of_spaces(rng: Random) -> Case:
    """Megabytes of space and then an error."""
    tenant = _tenant(rng)
    space = _fill(rng.choice((b" ", b"\n", b"\t\r")), rng.choice((2, 4)) * 1024 * 1024)
    return _case("flood_of_spaces", tenant, space + _chat_body(tenant, rng) + b",", accepted=REJECTED)


def flood_of_escapes(rng: Random) -> Case:
    """A message of megabytes of escaped quotes, backslashes or characters."""
    tenant = _tenant(rng)
    text = _fill(rng.choice((b'\\"', b"\\\\", b"\\u0041", b"\\ud83d\\ude00", b"\\ud800")), 3 * 1024 * 1024)
    return _case("flood_of_escapes", tenant, _with_content(tenant, rng, b'"' + text + b'"'))


def flood_of_digits(rng: Random) -> Case:
    """A number of a million digits and more."""
    digits = _fill(b"7", rng.choice((1_100_000, 2_500_000)))
    field = rng.choice((b'"seed":', b'"max_tokens":', b'"metadata":'))
    return _extra("flood_of_digits", rng, field + digits, REJECTED)


def flood_of_fractions(rng: Random) -> Case:
    """Hundreds of thousands of numbers that are slow to read exactly."""
    tenant = _tenant(rng)
    number = rng.choice(
        (b"2.2250738585072011e-308,", b"1.00000000000000011102230246251565404236316680908203124,")
    )
    prompt = b"[" + _fill(number, 2 * 1024 * 1024) + b"1]"
    return _case("flood_of_fractions", tenant, _with_prompt(rng, prompt), path=COMPLETIONS)


def string_without_end(rng: Random) -> Case:
    """A string of megabytes that is never closed."""
    tenant = _tenant(rng)
    text = _fill(rng.choice((b"x", "é".encode(), b"\\\\")), rng.choice((2, 6)) * 1024 * 1024)
    body = _chat_body(tenant, rng, b',"user":"')[:-1] + text
    return _case("string_without_end", tenant, body, accepted=REJECTED)


def flood_of_sentences(rng: Random) -> Case:
    """A prompt of megabytes of sentences, of one word each or all equal, or without any end."""
    tenant = _tenant(rng)
    piece = rng.choice((b"a. ", b".", b"\\n\\n", b"Is it? It is! ", b"word ", "。".encode(), b" "))
    text = b'"' + _fill(piece, rng.choice((1_200_000, 3_000_000))) + b'"'
    if rng.random() < 0.5:
        return _case("flood_of_sentences", tenant, _with_content(tenant, rng, text))
    return _case("flood_of_sentences", tenant, _with_prompt(rng, text, b',"stream":true'), path=COMPLETIONS)


def flood_of_patterns(rng: Random) -> Case:
    """A pattern of more than a megabyte, of beginnings, repeats or alternatives."""
    piece = rng.choice((b"a{", b"(a|b)", b"[a", b"(?:", b"\\\\\\\\", b"a{1}", b"|"))
    return _extra("flood_of_patterns", rng, b'"guided_regex":"' + _fill(piece, 1_500_000) + b'"', REJECTED)


@cache
def _image(piece: bytes, size: int) -> bytes:
    return b'[{"type":"image_url","image_url":{"url":"data:image/png;base64,' + _of(piece, size) + b'"}}]'


def flood_of_data(rng: Random) -> Case:
    """An image of megabytes in a data address, good or not."""
    tenant = _tenant(rng)
    part = _image(rng.choice((b"iVBORw0K", b"=", b"%41", b"\\n")), rng.choice((2, 7)) * 1024 * 1024)
    return _case("flood_of_data", tenant, _with_content(tenant, rng, part))


def flood_in_a_string(rng: Random) -> Case:
    """A schema of more than a megabyte in a string, with too many objects, depth or patterns."""
    piece = rng.choice((b"{},", b"[", b'{\\"pattern\\":\\"aaaaaaaaaaaaaaaa\\"},', b'{\\"a\\":'))
    text = b'"guided_json":"{\\"anyOf\\":[' + _fill(piece, 1_300_000) + b'{}]}"'
    return _extra("flood_in_a_string", rng, text, REJECTED)


def flood_of_brackets(rng: Random) -> Case:
    """More than a megabyte of brackets, or of pairs of them."""
    tenant = _tenant(rng)
    body = _fill(rng.choice((b"[", b"[],", b'{"a":', b"[[],")), rng.choice((1_200_000, 5_000_000)))
    return _case("flood_of_brackets", tenant, b"[" + body + b"%d" % rng.getrandbits(20), accepted=REJECTED)


@cache
def _biases(count: int) -> bytes:
    return b",".join(b'"%d":-1.5' % number for number in range(count))


def flood_of_biases(rng: Random) -> Case:
    """A bias for each of a hundred thousand tokens."""
    return _extra("flood_of_biases", rng, b'"logit_bias":{' + _biases(120_000) + b"}")


def flood_of_arguments(rng: Random) -> Case:
    """Arguments of a tool call of more than a megabyte, as a string that is parsed again."""
    text = _fill(rng.choice((b"[", b"7", b'{\\"a\\":', b"\\\\u0041")), 1_400_000)
    call = b'{"id":"c","type":"function","function":{"name":"f","arguments":"' + text + b'"}}'
    body = b'"messages":[{"role":"user","content":"x"},{"role":"assistant","tool_calls":[' + call + b"]}]"
    return _extra("flood_of_arguments", rng, body)


@cache
def _flood_of_ones() -> bytes:
    return b"1\r\n \r\n" * 200_000


def flood_of_chunks(rng: Random) -> RawCase:
    """More than a megabyte of chunks of one byte, sent at once."""
    tenant = _tenant(rng)
    end = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body := _chat_body(tenant, rng)), body)
    data = _flood_of_ones()[: 6 * rng.choice((180_000, 200_000))]
    return RawCase("flood_of_chunks", _post(tenant, b"transfer-encoding: chunked") + data + end)


def flood_without_a_key(rng: Random) -> RawCase:
    """Megabytes of a body from somebody whom nobody knows, who sends it whatever the answer is."""
    size = rng.choice((2, 8)) * 1024 * 1024
    head = _head(b"POST /v1/chat/completions HTTP/1.1", None, b"content-length: %d" % size)
    return RawCase("flood_without_a_key", head + _fill(b"[", size), (0, 401))


Kinds = tuple[Callable[[Random], Case | RawCase], ...]

SMALL: Kinds = (
    repeats_in_repeats,
    braces_never_closed,
    patterns_in_all,
    property_patterns,
    backslashes_in_strings,
    schema_in_a_string,
    string_in_a_string,
    endless_grammar,
    digit_runs,
    long_fractions,
    colliding_biases,
    same_name_again,
    forbidden_then_hidden,
    unknown_fields,
    ignored_fields,
    halves_of_characters,
    all_escaped,
    other_encodings,
    sea_of_spaces,
    many_parts,
    just_as_deep,
    long_stop_lists,
    many_tools,
    doubling_references,
    items_of_items,
    odd_bounds,
    addresses_that_are_not_data,
    odd_data_addresses,
    lists_of_inputs,
    answers_times_prompts,
    mixed_prompts,
    many_messages,
    calls_with_odd_arguments,
    template_arguments,
    ends_of_sentences,
    wrong_types,
    unpacks_to_much,
    as_many_headers,
    as_long_heads,
    odd_keys,
    keys_twice,
    odd_request_ids,
    cache_wishes,
    paths_to_the_admin,
    odd_queries,
    wrong_methods,
    bodies_on_gets,
    no_key_and_a_body,
    two_ways_to_read,
    broken_chunks,
    chunks_of_one,
    endless_chunk_lines,
    promises_too_much,
    promises_and_leaves,
    waits_to_continue,
    says_goodbye_early,
    slow_heads,
    slow_chunks,
    many_at_once,
    more_than_it_said,
    other_protocols,
    head_without_end,
    blank_lines_first,
)
LARGE: Kinds = (
    million_values,
    flood_of_spaces,
    flood_of_escapes,
    flood_of_digits,
    flood_of_fractions,
    string_without_end,
    flood_of_sentences,
    flood_of_patterns,
    flood_of_data,
    flood_in_a_string,
    flood_of_brackets,
    flood_of_biases,
    flood_of_arguments,
    flood_of_chunks,
    flood_without_a_key,
)
