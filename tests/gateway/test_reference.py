"""The gateway's page names every address, every error code with its status, and the numbers of retries."""

import re
from unittest.mock import MagicMock

from phasewise.gateway.api.routes import Router
from phasewise.gateway.http_errors import BREAKS_STREAMS, HTTP_ERRORS
from phasewise.scheduling.breakers import FAILURES_TO_OPEN, LONGEST_OPEN_S, REMEMBERED, RetryBudget
from phasewise.scheduling.flow import MAX_ATTEMPTS
from tests.paths import ROOT

PAGE = (ROOT / "docs" / "reference" / "gateway.md").read_text()


def test_every_address_is_documented():
    documented = set(re.findall(r"\| `(GET|POST) (/[^`]*)` \|", PAGE))
    forwarded = PAGE.partition("### Other paths of engines")[2].partition("[`engine_paths`]")[0]
    for method, paths in re.findall(r"^- `(GET|POST)`: (.*?)[;.]$", forwarded, re.MULTILINE | re.DOTALL):
        documented |= {(method, path) for path in re.findall(r"`(/[^`]*)`", paths)}
    assert documented == set(Router(MagicMock()).addresses)


def test_every_error_is_documented_with_its_status():
    documented = {code: int(status) for code, status in re.findall(r"\| `(\w+)` \| (\d{3}) \|", PAGE)}
    assert documented == {kind.value: error.status for kind, error in HTTP_ERRORS.items()}


def test_every_code_that_ends_a_stream_is_documented():
    reported = PAGE.partition("Its code is `stream_` and one of the codes above:")[2].partition(".")[0]
    assert set(re.findall(r"`(\w+)`", reported)) == BREAKS_STREAMS


def test_the_numbers_of_retries_are_those_that_are_used():
    reported = " ".join(PAGE.partition("## Retries")[2].partition("\n## ")[0].split())
    words = {2: "two", 5: "five", 20: "twenty"}
    budget = RetryBudget()
    assert f"At most {words[MAX_ATTEMPTS]} attempts" in reported
    assert f"one retry per {words[round(1 / budget._earned_per_request)]} requests" in reported
    assert f"{budget._burst:,.0f} at once" in reported
    assert (
        f"at least {words[FAILURES_TO_OPEN]} requests, and half of its last {words[REMEMBERED]}" in reported
    )
    assert f"up to {LONGEST_OPEN_S:g} seconds" in reported
