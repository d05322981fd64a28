"""The gateway's page names every address and every error code with its status."""

import re
from pathlib import Path

from phasewise.gateway.http_errors import HTTP_ERRORS
from phasewise.gateway.routes import Router

PAGE = (Path(__file__).parent.parent.parent / "docs" / "reference" / "gateway.md").read_text()


def test_every_address_is_documented():
    documented = set(re.findall(r"\| `(GET|POST) (/[^`]*)` \|", PAGE))
    assert documented == set(Router(gateway=None).addresses)


def test_every_error_is_documented_with_its_status():
    documented = {code: int(status) for code, status in re.findall(r"\| `(\w+)` \| (\d{3}) \|", PAGE)}
    assert documented == {kind.value: error.status for kind, error in HTTP_ERRORS.items()}
