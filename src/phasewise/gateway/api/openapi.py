"""The gateway's routes, fields and errors as an OpenAPI document, built from the tables that serve them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from phasewise import __version__
from phasewise.core.request import WITH_KNOWN_FIELDS, Endpoint
from phasewise.core.request_fields import FIELDS_ON, PROMPT_FIELD
from phasewise.engines.known import INFERENCE_PATHS
from phasewise.fleet.config.gateway import Frozen
from phasewise.gateway.api.body_checks import LARGEST_NUMBER
from phasewise.gateway.api.cache_routes import PurgeOrder, Question
from phasewise.gateway.api.fields import ALLOWED_FIELDS, IGNORED_FIELDS, MODEL_NAME_LIMIT
from phasewise.gateway.http_errors import BREAKS_STREAMS, HTTP_ERRORS, stream_code
from phasewise.gateway.records.timeline_store import MEASURES

Json = dict[str, Any]

_RANGE: Json = {"minimum": -LARGEST_NUMBER, "maximum": LARGEST_NUMBER}
_INTEGER: Json = {"type": ["integer", "null"], **_RANGE}
_TOKEN_IDS: Json = {"type": "array", "items": {"type": "integer", "minimum": 0}}
_PROMPT: Json = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}},
        _TOKEN_IDS,
        {"type": "array", "items": _TOKEN_IDS},
    ]
}
_MESSAGES: Json = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["role"],
        "properties": {
            "role": {"type": "string"},
            "content": {"type": ["string", "array", "null"], "items": {"type": "object"}},
        },
    },
}

_SCHEMAS: dict[str, Json] = {
    "anything": {},
    "boolean": {"type": ["boolean", "null"]},
    "count": _INTEGER,
    "integer": _INTEGER,
    "items": {"type": ["string", "array"], "items": {"type": "object"}},
    "list": {"type": ["array", "null"]},
    "messages": _MESSAGES,
    "model": {"type": "string", "minLength": 1, "maxLength": MODEL_NAME_LIMIT},
    "number": {"type": ["number", "null"], **_RANGE},
    "object": {"type": ["object", "null"]},
    "prompt": _PROMPT,
    "system": {"type": ["string", "array", "null"], "items": {"type": "object"}},
    "text": {"type": ["string", "null"]},
    "texts": {"type": ["string", "array", "null"], "items": {"type": "string"}},
    "ignored": {"description": "Accepted and ignored; the reply names it in `x-phasewise-ignored`."},
}
NOTHING_BUT_EDGE = (400, 403, 405, 408, 413, 415, 431)
"""The statuses that any route may return, because they are decided before routing."""
_ENGINES_WORK = (401, 404, 422, 429, 503, 504)
_ENGINES_OWN = "An engine's own rejection, passed on as it came."


@dataclass(frozen=True, slots=True)
class Operation:
    """One address in the document."""

    summary: str
    errors: tuple[int, ...] = ()
    key: str | None = None
    answers: str = "application/json"
    parameters: tuple[str, ...] = ()
    body: type[Frozen] | None = None


def _admins(
    summary: str,
    *errors: int,
    answers: str = "application/json",
    parameters: tuple[str, ...] = (),
    body: type[Frozen] | None = None,
) -> Operation:
    return Operation(summary, (401, 403, *errors), "admin", answers, parameters, body)


_SCHEMES = {"client": ("client", "x_api_key")}
_NDJSON, _ID = "application/x-ndjson", ("id",)
OPERATIONS: dict[tuple[str, str], Operation] = {
    ("POST", "/v1/chat/completions"): Operation("Chat.", _ENGINES_WORK, "client"),
    ("POST", "/v1/completions"): Operation("Completions.", _ENGINES_WORK, "client"),
    ("POST", "/v1/embeddings"): Operation("Embeddings.", _ENGINES_WORK, "client"),
    ("POST", "/v1/responses"): Operation("Responses.", _ENGINES_WORK, "client"),
    ("POST", "/v1/messages"): Operation("Anthropic's messages.", _ENGINES_WORK, "client"),
    ("POST", "/v1/messages/count_tokens"): Operation(
        "The prompt tokens of Anthropic's messages.", _ENGINES_WORK, "client"
    ),
    ("GET", "/v1/models"): Operation("Models that workers serve.", (401,), "client"),
    ("GET", "/v1/models/{id}"): Operation(
        "One model that workers serve.", (401, 404), "client", parameters=_ID
    ),
    ("GET", "/health"): Operation("Whether a worker answers.", (503,)),
    ("GET", "/metrics"): Operation("Prometheus metrics.", (401,), "metrics", "text/plain"),
    ("GET", "/openapi.json"): Operation("This document."),
    ("GET", "/phasewise/"): Operation("The page of the live view.", (403,), answers="text/html"),
    ("GET", "/phasewise/v1/requests"): _admins(
        "Timelines of requests that have ended.",
        answers=_NDJSON,
        parameters=("limit", "after", "since_unix_s", "slowest", "tenant", "id"),
    ),
    ("GET", "/phasewise/v1/requests/open"): _admins(
        "Requests under way.", answers=_NDJSON, parameters=("limit",)
    ),
    ("GET", "/phasewise/v1/requests/{id}"): _admins("One request's timeline.", 404, parameters=_ID),
    ("GET", "/phasewise/v1/live"): _admins(
        "What is slow now; as an event stream, once a second.", parameters=("slo",)
    ),
    ("GET", "/phasewise/v1/live/verdict"): _admins(
        "The verdict on a window that has passed.", 503, parameters=("since_unix_s", "until_unix_s")
    ),
    ("GET", "/phasewise/v1/requests/{id}/page"): _admins("One request, drawn.", 404, 503, parameters=_ID),
    ("GET", "/phasewise/v1/workers"): _admins("Workers, their health and load."),
    ("GET", "/phasewise/v1/workers/{id}/metrics"): _admins(
        "A worker's own Prometheus page.", 404, 503, answers="text/plain", parameters=_ID
    ),
    ("POST", "/phasewise/v1/workers/{id}/tokenize"): _admins(
        "What a worker's tokenizer says.", 404, 503, parameters=_ID
    ),
    ("GET", "/phasewise/v1/cache"): _admins("What the answer cache did, or would have done.", 404),
    ("POST", "/phasewise/v1/cache/purge"): _admins("Forget kept answers.", 404, 503, body=PurgeOrder),
    ("POST", "/phasewise/v1/cache/explain"): _admins(
        "What the answer cache would do with a question.", 404, 503, body=Question
    ),
    ("POST", "/phasewise/v1/reload"): _admins("Read the configuration again.", 409),
}
_FORWARDED = "Forwarded to an engine, which knows its fields; closed where keys lend rights."
OPERATIONS |= {
    (method, path): Operation(_FORWARDED, (400, *_ENGINES_WORK), "client")
    for path, methods in INFERENCE_PATHS.items()
    for method in methods
}
_NOT_NEGATIVE: Json = {"type": "number", "minimum": 0, "exclusiveMaximum": 1e12}
_PARAMETER_SCHEMAS: dict[str, Json] = {
    "limit": _NOT_NEGATIVE,
    "since_unix_s": _NOT_NEGATIVE,
    "until_unix_s": _NOT_NEGATIVE,
    "after": {"type": "integer", "minimum": 0, "exclusiveMaximum": 10**18},
    "slowest": {"enum": list(MEASURES)},
    "tenant": {"type": "string"},
    "slo": {"type": "string"},
    "id": {"type": "string", "pattern": "^[A-Za-z0-9_-]+$"},
}


def openapi_document(addresses: Iterable[tuple[str, str]]) -> Json:
    """The document of a gateway with these routes."""
    paths: dict[str, Json] = {}
    for method, path in addresses:
        others, described = paths.setdefault(path, {}), _operation(path, OPERATIONS[method, path])
        described["operationId"] += f"_{method.lower()}" if others else ""
        others[method.lower()] = described
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "phasewise gateway",
            "version": __version__,
            "description": "An address of OpenAI's and Anthropic's API in front of one or more engines.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": {"Error": _ERROR, **{_schema_name(on): _body_schema(on) for on in WITH_KNOWN_FIELDS}},
            "responses": {f"Error{status}": _error_response(status) for status in sorted(_codes_by_status())},
            "securitySchemes": {
                "client": {"type": "http", "scheme": "bearer", "description": "A client's key."},
                "x_api_key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
                "admin": {"type": "http", "scheme": "bearer", "description": "The admin key."},
                "metrics": {"type": "http", "scheme": "bearer", "description": "The key for metrics."},
            },
        },
    }


_ERROR: Json = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "type": {"const": "error", "description": "At Anthropic's addresses."},
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"enum": [*map(str, HTTP_ERRORS), *sorted(map(stream_code, BREAKS_STREAMS))]},
            },
        },
    },
}


def _operation(path: str, operation: Operation) -> Json:
    described: Json = {
        "summary": operation.summary,
        "operationId": path.strip("/").replace("/", "_").replace("{id}", "by_id").replace(".", "_"),
        "responses": {
            "200": {"description": "The answer.", "content": {operation.answers: {}}},
            **{
                str(status): {"$ref": f"#/components/responses/Error{status}"}
                for status in sorted({*NOTHING_BUT_EDGE, *operation.errors})
            },
        },
    }
    if operation.key is not None:
        # Without configured keys a gateway on loopback requires none.
        described["security"] = [{key: []} for key in _SCHEMES.get(operation.key, (operation.key,))]
        described["security"] += [{}] if operation.key != "admin" else []
    if operation.parameters:
        described["parameters"] = [_parameter(name, path) for name in operation.parameters]
    if operation.body is not None:
        described["requestBody"] = _json_body(operation.body.model_json_schema())
    if path in WITH_KNOWN_FIELDS:
        endpoint = Endpoint(path)
        described["requestBody"] = _json_body({"$ref": f"#/components/schemas/{_schema_name(endpoint)}"})
        described["responses"]["4XX"] = {"description": _ENGINES_OWN}
        if endpoint.generates:
            described["responses"]["200"]["content"]["text/event-stream"] = {}
    return described


def _json_body(schema: Json) -> Json:
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def _parameter(name: str, path: str) -> Json:
    in_path = f"{{{name}}}" in path
    return {
        "name": name,
        "in": "path" if in_path else "query",
        "required": in_path,
        "schema": _PARAMETER_SCHEMAS[name],
    }


def _schema_name(endpoint: Endpoint) -> str:
    return f"{endpoint.name.title()}Request"


def _body_schema(endpoint: Endpoint) -> Json:
    return {
        "type": "object",
        "required": ["model", PROMPT_FIELD[endpoint]],
        "properties": {
            name: _SCHEMAS[FIELDS_ON[endpoint][name].type]
            for name in sorted(ALLOWED_FIELDS[endpoint] | IGNORED_FIELDS[endpoint])
        },
        "additionalProperties": True,
    }


def _codes_by_status() -> dict[int, list[str]]:
    codes: dict[int, list[str]] = {}
    for kind, error in HTTP_ERRORS.items():
        codes.setdefault(error.status, []).append(kind.value)
    return codes


def _error_response(status: int) -> Json:
    return {
        "description": f"Codes: {', '.join(sorted(_codes_by_status()[status]))}.",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
