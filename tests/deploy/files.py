"""Where the files of deploy/ are, and the dashboard as data: read once, for all tests of this folder."""

from __future__ import annotations

import json
import re

from tests.paths import ROOT

DEPLOY = ROOT / "deploy"
DASHBOARD = DEPLOY / "grafana" / "dashboards" / "phases.json"


def read_dashboard():
    return json.loads(DASHBOARD.read_text())


def panels_with_queries():
    return [panel for panel in read_dashboard()["panels"] if panel["type"] != "row"]


def queries():
    """Every query of the dashboard as (panel's title, letter, PromQL with Grafana's variables in it)."""
    return [
        (panel["title"], target["refId"], target["expr"])
        for panel in panels_with_queries()
        for target in panel["targets"]
    ]


def filled_in(expression, window="1m"):
    """The query as Grafana would send it with everything chosen."""
    filled = expression.replace("$__rate_interval", window)
    return re.sub(r"\$(model|pool)\b", ".*", filled)
