"""The dashboard asks for metrics that exist, fits its grid, and has one colour per phase everywhere."""

from __future__ import annotations

import re
from itertools import combinations

import yaml

from phasewise.core.slo import DEFAULT_SLO
from phasewise.core.timeline import TTFT_PARTS, Part
from phasewise.gateway.records.metric_families import METRICS
from tests.deploy.files import DEPLOY, ROOT, panels_with_queries, queries, read_dashboard

STYLE = ROOT / "src" / "phasewise" / "report" / "assets" / "style.css"
ABOUT_PREFILL = {"prefill", "p50 of TTFT", "first token within 1 s", "prompt"}
ABOUT_DECODE = {"decode", "p50 of TPOT", "at most 100 ms per token", "output"}


def colour_in_reports(name):
    """A part's colour in the dark form of reports; Grafana is dark by default."""
    return re.search(rf"--{name.replace('_', '-')}: light-dark\(#\w+, (#\w+)\)", STYLE.read_text())[1]


def colours():
    """What is drawn with a fixed colour, by its legend; a quantile with the name of its panel."""
    for panel in panels_with_queries():
        fixed = panel["fieldConfig"]["defaults"]["color"].get("fixedColor")
        if fixed:
            yield panel["title"].replace("TTFT p50", "p50 of TTFT").replace("TPOT p50", "p50 of TPOT"), fixed
        for override in panel["fieldConfig"]["overrides"]:
            legend = override["matcher"]["options"]
            name = f"{legend} of {panel['title']}" if re.fullmatch(r"p\d\d", legend) else legend
            yield name, override["properties"][0]["value"]["fixedColor"]


def test_every_query_is_about_metrics_and_labels_that_exist():
    known = {metric.name: metric for metric in METRICS}
    for panel, _, expression in queries():
        for name, matchers in re.findall(r"(phasewise_\w+)(?:\{([^}]*)\})?", expression):
            metric = known.get(name) or known[re.sub(r"_(bucket|sum|count)$", "", name)]
            labels = set(re.findall(r"(\w+)=", matchers))
            assert labels <= {*metric.labels, "le"}, f"{panel}: {name} has no such labels"


def test_every_metric_is_shown():
    shown = " ".join(expression for _, _, expression in queries())
    assert [metric.name for metric in METRICS if metric.name not in shown] == []


def test_objectives_are_read_off_buckets_that_exist():
    asked = {
        (metric, float(bound))
        for _, _, expression in queries()
        for metric, bound in re.findall(r'(phasewise_\w+)_bucket\{[^}]*le="([\d.]+)"', expression)
    }
    assert asked == {
        ("phasewise_ttft_seconds", DEFAULT_SLO.ttft_s),
        ("phasewise_tpot_seconds", DEFAULT_SLO.tpot_s),
    }


def test_prefill_and_decode_have_one_colour_each_wherever_they_are_drawn():
    drawn = list(colours())
    prefill, decode = colour_in_reports(Part.PREFILL), colour_in_reports(Part.DECODE)
    assert {name for name, colour in drawn if colour == prefill} == ABOUT_PREFILL
    assert {name for name, colour in drawn if colour == decode} == ABOUT_DECODE


def test_parts_have_the_colours_of_reports():
    stacked = next(panel for panel in panels_with_queries() if "made of" in panel["title"])
    drawn = {
        it["matcher"]["options"]: it["properties"][0]["value"]["fixedColor"]
        for it in stacked["fieldConfig"]["overrides"]
    }
    expected = {part.value: colour_in_reports(part) for part in TTFT_PARTS}
    assert drawn == {**expected, "unexplained": colour_in_reports("unexplained")}


def test_panels_lie_on_the_grid_without_covering_each_other():
    places = [panel["gridPos"] for panel in read_dashboard()["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below


def test_panels_have_numbers_of_their_own_and_say_what_they_show():
    panels = read_dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["description"].endswith(".") for panel in panels_with_queries())


def test_everything_asks_the_source_that_is_provisioned():
    provisioned = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yaml").read_text())
    source = {"type": "prometheus", "uid": provisioned["datasources"][0]["uid"]}
    variables = read_dashboard()["templating"]["list"]
    asking = [
        *variables,
        *panels_with_queries(),
        *(it for one in panels_with_queries() for it in one["targets"]),
    ]
    assert all(it["datasource"] == source for it in asking)
