"""Requests that schemathesis makes of the gateway's own OpenAPI document."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote, urlencode

import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.core.result import Err

from phasewise.gateway.api.openapi import OPERATIONS, openapi_document

from .cases import ADMIN_KEY, KEYS, MODEL, Case, key_header


def draw(count: int, run_seed: int) -> list[Case]:
    """About so many cases over all operations, as they should be and as they should not."""
    document = openapi_document(OPERATIONS)
    for schema in document["components"]["schemas"].values():
        # A model by chance is served by nobody: no request would get any further.
        if "model" in schema["properties"]:
            schema["properties"]["model"] = {"const": MODEL}
    operations = []
    for found in schemathesis.openapi.from_dict(document).get_all_operations():
        if isinstance(found, Err):
            raise found.err()
        operations.append(found.ok())
    each = max(1, count // (2 * len(operations)))
    cases: list[Case] = []
    for operation in operations:
        for mode in GenerationMode:
            cases += drawn(operation, mode, each, run_seed)
    return cases


def drawn(operation: Any, mode: GenerationMode, count: int, run_seed: int) -> list[Case]:  # noqa: ANN401
    """Cases of one operation; none where it has nothing that could be wrong."""
    found: list[Case] = []

    @seed(run_seed)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(operation.as_strategy(generation_mode=mode))
    def collect(case: Any) -> None:  # noqa: ANN401
        found.append(as_case(case))

    try:
        collect()
    except schemathesis.errors.SchemathesisError:
        pass
    except BaseException as error:
        if "Unsatisfiable" not in type(error).__name__ and "SkipTest" not in type(error).__name__:
            raise
    return found


def as_case(case: Any) -> Case:  # noqa: ANN401
    """What schemathesis made, for our own client; anything that is documented may come back."""
    reported = case.as_transport_kwargs(base_url="http://gateway")
    body = json.dumps(reported["json"]).encode() if "json" in reported else as_bytes(reported.get("data"))
    path = reported["url"].removeprefix("http://gateway")
    if reported.get("params"):
        path += "?" + urlencode(reported["params"], doseq=True)
    tenant = None if path.startswith("/phasewise/") else "a"
    key = ADMIN_KEY if tenant is None else KEYS[tenant]
    safe = quote(path, safe="/?&=%-_.~+")
    return Case("schemathesis", body, safe, case.method.upper(), tenant, (key_header(key),))


def as_bytes(data: object) -> bytes:
    """A body that is not JSON."""
    if isinstance(data, bytes):
        return data
    return b"" if data is None else str(data).encode(errors="replace")
