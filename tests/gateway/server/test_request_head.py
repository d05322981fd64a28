"""Which hosts, web pages and kinds of bodies a gateway takes, by a request's head alone."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from phasewise.core.errors import RejectionKind, RequestRejected
from phasewise.fake_engine.fleet import running_engines
from phasewise.fleet.config import ApiKey, GatewayConfig
from phasewise.gateway.api.auth import key_sha256
from phasewise.gateway.server.request_head import AllowedSites, check_body_form
from tests.gateway.harness import chat_body, events_of, running_gateway
from tests.gateway.server.test_client_timeouts import connected

FOREIGN = "pages.example"
PAGE = f"https://{FOREIGN}"
WITH_KEYS = {"api_keys": (ApiKey(sha256=key_sha256("a-key")),)}
BODY = orjson.dumps(chat_body())


def check(method="POST", settings=(), **head):
    """The headers that let a page read the answer, for a request with this head."""
    sites = AllowedSites.of(GatewayConfig(**dict(settings)))
    found = {name.replace("_", "-").encode(): value.encode() for name, value in head.items()}
    return {name.decode(): value.decode() for name, value in sites.check(method.encode(), found)}


def rejection_of(*args, **head):
    with pytest.raises(RequestRejected) as caught:
        check(*args, **head)
    assert caught.value.kind is RejectionKind.FORBIDDEN
    assert FOREIGN not in str(caught.value)
    return str(caught.value)


# --- hosts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8080", "127.0.0.1", "127.0.0.1:8080", "[::1]", "[::1]:8080"]
)
def test_this_machines_names_are_taken_with_and_without_a_port(host):
    assert check(host=host) == check(host=host, origin=f"http://{host}") == {}
    assert check(origin=f"https://{host}") == {}


@pytest.mark.parametrize(
    "host",
    [
        "",
        FOREIGN,
        "localhost.example",
        "127.0.0.1.example",
        "127.0.0.1:80:80",
        "localhost:",
        "::1",
        "10.0.0.1",
    ],
)
def test_other_names_are_rejected_in_either_header(host):
    assert "gateway.trusted_hosts" in rejection_of(host=host)
    assert "gateway.cors" in rejection_of(host="localhost", origin=f"http://{host}")


def test_trusted_hosts_are_exact_and_forwarding_headers_change_nothing():
    settings = {"trusted_hosts": ("gateway.example", "10.0.0.1", "fd00::1")}
    for host in ("gateway.example", "Gateway.Example:443", "10.0.0.1:80", "[fd00::1]:80"):
        assert check(settings=settings, host=host, origin=f"https://{host}") == {}
    for host in ("a.gateway.example", "gateway.example.", "10.0.0.2", "fd00::1"):
        rejection_of("POST", settings, host=host)
    rejection_of(host=FOREIGN, x_forwarded_host="localhost", x_forwarded_for="127.0.0.1", forwarded="host=a")
    assert check(host="localhost", x_forwarded_host=FOREIGN) == {}


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("trusted_hosts", "gateway.example:80"),
        ("trusted_hosts", "*"),
        ("trusted_hosts", "http://gateway.example"),
        ("cors", "pages.example"),
        ("cors", "https://pages.example/"),
        ("cors", "null"),
    ],
)
def test_what_could_never_match_is_no_setting(setting, value):
    with pytest.raises(ValueError, match=setting):
        GatewayConfig(**{setting: (value,)})


# --- web pages ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, WITH_KEYS])
@pytest.mark.parametrize(
    "origin", ["null", "file://", "", "chrome-extension://abc", PAGE, "http://localhost.example"]
)
def test_a_page_that_cors_does_not_name_is_rejected_with_keys_and_without(settings, origin):
    assert "gateway.cors" in rejection_of("POST", settings, host="localhost", origin=origin)
    assert "gateway.cors" in rejection_of("POST", {**settings, "cors": ("https://a.example",)}, origin=origin)


def test_a_page_of_the_gateways_own_address_may_ask():
    assert check("POST", WITH_KEYS, host=FOREIGN, origin=PAGE, sec_fetch_site="same-origin") == {}
    rejection_of("POST", WITH_KEYS, host=f"{FOREIGN}:8443", origin=PAGE)


def test_what_a_page_of_another_site_makes_a_browser_send_is_rejected_but_links_may_be_followed():
    rejection_of("GET", sec_fetch_site="cross-site", sec_fetch_mode="no-cors", sec_fetch_dest="script")
    rejection_of("POST", sec_fetch_site="cross-site", sec_fetch_mode="navigate", sec_fetch_dest="document")
    rejection_of("POST", origin="http://localhost:3000", sec_fetch_site="cross-site")
    assert (
        check("GET", sec_fetch_site="cross-site", sec_fetch_mode="navigate", sec_fetch_dest="document") == {}
    )
    assert check("GET", sec_fetch_site="none") == {}


@pytest.mark.parametrize("settings", [{}, WITH_KEYS])
def test_the_answer_to_an_allowed_page_says_that_it_may_read_it(settings):
    settings = {**settings, "cors": (PAGE, "app://editor")}
    for origin in settings["cors"]:
        said = check("POST", settings, host="localhost", origin=origin, sec_fetch_site="cross-site")
        assert said["access-control-allow-origin"] == origin
        assert "x-request-id" in said["access-control-expose-headers"]
        assert said["vary"] == "origin"
    every = check("POST", {**settings, "cors": ("*",)}, host="localhost", origin="null")
    assert every["access-control-allow-origin"] == "*"


def test_a_preflight_from_a_page_on_this_machine_needs_cors_too():
    head = {
        "host": "localhost:8080",
        "origin": "http://localhost:3000",
        "access_control_request_method": "POST",
    }
    assert "gateway.cors" in rejection_of("OPTIONS", {}, **head)
    assert check("OPTIONS", {"cors": ("http://localhost:3000",)}, **head)


# --- bodies ------------------------------------------------------------------------------------------------

JSON, FORM = "application/json", "multipart/form-data; boundary=x"


@pytest.mark.parametrize(
    ("path", "head", "expected"),
    [
        ("/v1/chat/completions", {"content-type": JSON}, None),
        ("/v1/chat/completions", {"content-type": "Application/JSON; charset=utf-8"}, None),
        ("/v1/chat/completions", {"content-type": JSON, "content-encoding": "identity"}, None),
        ("/v1/chat/completions", {"content-type": JSON, "content-encoding": "gzip"}, "unsupported_encoding"),
        (
            "/v1/chat/completions",
            {"content-type": JSON, "content-encoding": "br, identity"},
            "unsupported_encoding",
        ),
        ("/v1/chat/completions", {}, "bad_request"),
        ("/v1/chat/completions", {"content-type": "text/plain"}, "bad_request"),
        ("/v1/chat/completions", {"content-type": "application/vnd.api+json"}, "bad_request"),
        ("/v1/chat/completions", {"content-type": FORM}, "bad_request"),
        ("/v1/chat/completions", {"content-length": "", "transfer-encoding": "chunked"}, "bad_request"),
        ("/v1/audio/transcriptions", {"content-type": FORM}, None),
        ("/v1/audio/speech", {"content-type": JSON}, None),
        ("/v1/audio/transcriptions", {"content-type": "text/plain"}, "bad_request"),
        ("/phasewise/v1/reload", {"content-length": "0"}, None),
        ("/phasewise/v1/reload", {"content-length": ""}, None),
    ],
)
def test_a_posts_body_is_json_and_not_compressed_and_that_of_audio_may_be_a_form(path, head, expected):
    found = {name.encode(): value.encode() for name, value in {"content-length": "5", **head}.items()}
    if expected is None:
        check_body_form(path.encode(), found)
        return
    with pytest.raises(RequestRejected) as caught:
        check_body_form(path.encode(), found)
    assert caught.value.kind == expected


# --- over a connection -------------------------------------------------------------------------------------


async def sent(gateway, data):
    """The status, the headers and the body of the reply to these bytes, which end with the connection."""
    async with connected(gateway) as (reader, writer):
        writer.write(data)
        reply = await asyncio.wait_for(reader.read(), 60)
    head, _, body = reply.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    return int(lines[0].split()[1]), dict(line.split(": ", 1) for line in lines[1:]), body


async def answered(gateway, head):
    """The status and the error's code of a GET /health with this head."""
    status, _, body = await sent(gateway, f"GET /health {head}connection: close\r\n\r\n".encode())
    return status, orjson.loads(body).get("error", {}).get("code")


@pytest.mark.parametrize(
    ("settings", "head", "expected"),
    [
        ({}, "HTTP/1.1\r\nhost: localhost\r\n", (200, None)),
        ({}, f"HTTP/1.1\r\nhost: {FOREIGN}\r\n", (403, "forbidden")),
        ({}, f"HTTP/1.1\r\nhost: localhost\r\norigin: {PAGE}\r\n", (403, "forbidden")),
        ({}, "HTTP/1.1\r\n", (400, "bad_request")),
        ({}, "HTTP/1.0\r\n", (200, None)),
        ({}, f"HTTP/1.0\r\nhost: {FOREIGN}\r\n", (403, "forbidden")),
        (WITH_KEYS, f"HTTP/1.1\r\nhost: {FOREIGN}\r\norigin: {PAGE}\r\n", (200, None)),
        (WITH_KEYS, f"HTTP/1.1\r\nhost: {FOREIGN}\r\norigin: https://a.example\r\n", (403, "forbidden")),
        (WITH_KEYS, "HTTP/1.1\r\n", (400, "bad_request")),
    ],
)
async def test_who_may_ask_depends_on_whether_there_are_keys(settings, head, expected):
    async with running_engines(1) as engines, running_gateway(engines, **settings) as gateway:
        assert await answered(gateway, head) == expected


def page_head(method="POST", *lines):
    return "\r\n".join(
        (f"{method} /v1/chat/completions HTTP/1.1", "host: localhost", f"origin: {PAGE}", *lines, "")
    )


async def test_a_foreign_page_is_rejected_before_its_body_comes_and_an_allowed_one_is_served_after_a_reload():
    length = f"content-length: {len(BODY)}\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n"
    asks = page_head("OPTIONS", "access-control-request-method: POST") + (
        "access-control-request-headers: authorization,x-stainless-os\r\nconnection: close\r\n\r\n"
    )
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        for data in (page_head() + length, asks):
            status, headers, body = await sent(gateway, data.encode())
            assert (status, "gateway.cors" in body.decode()) == (403, True)
            assert "access-control-allow-origin" not in headers
        said = await gateway.reload(cors=(PAGE,), trusted_hosts=("gateway.example",))
        assert orjson.loads(said.body) == {"changed": "gateway.cors; gateway.trusted_hosts"}
        status, headers, body = await sent(gateway, asks.encode())
        assert (status, body, headers["access-control-allow-origin"]) == (200, b"", PAGE)
        assert "POST" in headers["access-control-allow-methods"]
        assert {"authorization", "x-api-key", "content-type", "anthropic-version", "x-stainless-os"} <= {
            name.strip() for name in headers["access-control-allow-headers"].split(",")
        }
        status, headers, body = await sent(gateway, (page_head() + length).encode() + BODY)
        assert (status, headers["access-control-allow-origin"]) == (200, PAGE)
        for wrong in (b"not JSON" + b" " * (len(BODY) - 8), BODY[:1] * len(BODY)):
            status, headers, _ = await sent(gateway, (page_head() + length).encode() + wrong)
            assert (status, headers["access-control-allow-origin"]) == (400, PAGE)
        zipped = page_head("POST", "content-encoding: gzip") + length
        status, headers, body = await sent(gateway, zipped.encode())
        assert (status, orjson.loads(body)["error"]["code"]) == (415, "unsupported_encoding")
        assert headers["access-control-allow-origin"] == PAGE
        named = "HTTP/1.1\r\nhost: gateway.example\r\n"
        assert await answered(gateway, named) == (200, None)


# --- HTTP/1.0 ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_a_post_in_http_1_0_is_answered_with_a_length_or_until_the_connection_ends(stream):
    body = orjson.dumps(chat_body(stream=stream))
    head = "POST /v1/chat/completions HTTP/1.0\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    head += f"expect: 100-continue\r\ncontent-length: {len(body)}\r\n\r\n"
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        status, headers, answer = await sent(gateway, head.encode() + body)
    assert (status, headers["connection"]) == (200, "close")
    assert "transfer-encoding" not in headers
    assert ("content-length" in headers) is (not stream)
    assert headers.get("x-accel-buffering") == ("no" if stream else None)
    if stream:
        assert events_of(answer)[-1] == "[DONE]"
        assert len(events_of(answer)) > 8
    else:
        assert len(answer) == int(headers["content-length"])


async def test_every_stream_asks_a_proxy_not_to_collect_it():
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        assert dict((await gateway.chat(stream=True)).headers)[b"x-accel-buffering"] == b"no"
        assert b"x-accel-buffering" not in dict((await gateway.chat()).headers)
