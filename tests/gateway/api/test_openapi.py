"""The OpenAPI document lists every address, field and error, and nothing else."""

from __future__ import annotations

from unittest.mock import MagicMock

import orjson
from openapi_spec_validator import OpenAPIV31SpecValidator

from phasewise.core.request import WITH_KNOWN_FIELDS
from phasewise.fake_engine.fleet import running_engines
from phasewise.gateway.api.fields import ALLOWED_FIELDS, ENGINE_CONTROLS, IGNORED_FIELDS
from phasewise.gateway.api.openapi import OPERATIONS, openapi_document
from phasewise.gateway.api.routes import Router
from phasewise.gateway.http_errors import BREAKS_STREAMS, HTTP_ERRORS
from tests.gateway.harness import running_gateway

ADDRESSES = Router(MagicMock()).addresses
DOCUMENT = openapi_document(ADDRESSES)


async def test_it_is_served_to_anyone():
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        reply = await gateway.fetch("GET", "/openapi.json")
    assert reply.status == 200
    assert orjson.loads(reply.body) == orjson.loads(orjson.dumps(DOCUMENT))


def test_it_is_valid():
    OpenAPIV31SpecValidator(DOCUMENT).validate()


def test_it_holds_the_routers_addresses_and_no_others():
    reported = {(method.upper(), path) for path, item in DOCUMENT["paths"].items() for method in item}
    assert reported == set(ADDRESSES) == set(OPERATIONS)


def test_every_field_is_in_it_with_a_type_and_no_engine_control_is():
    for endpoint in WITH_KNOWN_FIELDS:
        body = DOCUMENT["paths"][endpoint]["post"]["requestBody"]["content"]["application/json"]["schema"]
        schema = DOCUMENT["components"]["schemas"][body["$ref"].rpartition("/")[2]]
        assert set(schema["properties"]) == ALLOWED_FIELDS[endpoint] | IGNORED_FIELDS[endpoint]
        assert ENGINE_CONTROLS.isdisjoint(schema["properties"])
        assert schema["additionalProperties"] is True  # passed on, or left out and named


def test_every_error_code_is_listed_under_its_status():
    for kind, error in HTTP_ERRORS.items():
        assert kind.value in DOCUMENT["components"]["responses"][f"Error{error.status}"]["description"]
    used = {
        status for item in DOCUMENT["paths"].values() for it in item.values() for status in it["responses"]
    }
    assert {str(error.status) for error in HTTP_ERRORS.values()} <= used


def test_codes_of_answers_and_of_streams_that_break_are_listed():
    error = DOCUMENT["components"]["schemas"]["Error"]["properties"]["error"]["properties"]
    streams = {f"stream_{reason}" for reason in BREAKS_STREAMS}
    assert set(error["code"]["enum"]) == {kind.value for kind in HTTP_ERRORS} | streams


def test_admin_addresses_ask_for_the_admin_key():
    for path, item in DOCUMENT["paths"].items():
        for operation in item.values():
            assert (operation.get("security") == [{"admin": []}]) == path.startswith("/phasewise/v1/")
