"""A real Envoy asks the picker, with the configuration of deploy/envoy/endpoint-picker.yaml."""

from __future__ import annotations

import sys

import pytest

from tests.paths import ROOT


@pytest.mark.real
@pytest.mark.timeout(120)
async def test_envoy_follows_the_picker_and_its_load_is_released(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from picking import cases

    try:
        async with cases.scene(cases.with_trailers) as on:
            for case in (cases.metadata_only, cases.large_body, cases.trailers, cases.client_cancel):
                assert await case(on), case.__name__
    finally:
        for name in [it for it in sys.modules if it.partition(".")[0] in {"picking", "stress"}]:
            del sys.modules[name]
