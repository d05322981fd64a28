"""What to do next about an answer cache, from its report: one sentence that claims no more than was seen."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

from phasewise.bench.page.numbers import share
from phasewise.caching.evidence_book import Maturity

FEWEST_REQUESTS = 200
"""Of fewer, the share that could be served says little about tomorrow's."""

Report = Mapping[str, Any]


def would(report: Report, served: str, shadow: str) -> str:
    """The word for what was done, or for what would have been."""
    return shadow if report["mode"] == "shadow" else served


def may_be_served(cell: str) -> bool:
    """Whether a proof would be worth anything: only what comes of a known change is ever served."""
    return cell.rpartition("/")[2] == Maturity.KNOWN


def next_step(report: Report, now_unix_s: float) -> str:
    """The sentence."""
    if report["degraded"]:
        return (
            f"not all of the cache answers ({', '.join(report['degraded'])}), and requests do without "
            "it. See the gateway's log for why; nothing has to be restarted once it is back."
        )
    seen_s = now_unix_s - report["since_unix_s"]
    if not report["requests"]:
        return (
            f"no request came in {max(seen_s, 0):.0f} s. Send traffic through the gateway, then look again."
        )
    return _serving(report) if report["mode"] == "serve" else _shadow(report)


def _shadow(report: Report) -> str:
    found = _share_found(report)
    if report["requests"] < FEWEST_REQUESTS:
        return (
            f"{report['requests']:,} requests are too few to say anything: look again after "
            f"{FEWEST_REQUESTS:,}. So far {found} could have been served."
        )
    if not _found(report):
        return _nothing_found(report)
    told = f"shadow found {found} of requests answerable"
    if report["wrong"] is not None and _by_meaning(report):
        return f"{told}, {_found_by_meaning(report)}"
    missing = _missing(report)
    waits = f" Matches by meaning are not proven yet{missing}." if missing else ""
    return f"{told}, all of them the very same request{_differing(report)}: set cache.mode: serve.{waits}"


def _nothing_found(report: Report) -> str:
    if missing := _missing(report):
        return f"none could have been served yet{missing}: leave it in shadow mode and look again."
    return (
        f"of {report['requests']:,} requests none could have been served. If that stays so, leave the cache "
        "out: it saves nothing here."
    )


def _found_by_meaning(report: Report) -> str:
    wrong = report["wrong"]
    if wrong["at_most"] is None:
        return "but none has been judged yet. Wait, or look at the gateway's log for the judge."
    if wrong["at_most"] <= wrong["budget"]:
        return f"{_judged_words(report)}: set cache.mode: serve."
    limit = f"cache.semantic.max_wrong_answers ({wrong['budget']:.1%})"
    if wrong["share"] > wrong["budget"]:
        return (
            f"{_judged_words(report)}, more than {limit}: leave it in shadow mode, and see by `phasewise "
            "cache explain` what is taken for the same."
        )
    return (
        f"{_judged_words(report)}. Their kinds of match were proven before; wait until these alone show that "
        f"they keep to {limit}, or set cache.mode: serve now."
    )


def _serving(report: Report) -> str:
    told = f"{_share_found(report)} of requests were served from the cache"
    wrong = report["wrong"]
    if wrong is None:
        return f"{told}, all of them the very same request. Nothing has to be done."
    if wrong["share"] is None:
        return f"{told}. No match by meaning has been checked yet{_missing(report)}: go on."
    if wrong["share"] > wrong["budget"]:
        return (
            f"{told}, {_judged_words(report)}: more than cache.semantic.max_wrong_answers "
            f"({wrong['budget']:.1%}). {_what_ends(report)} Purge what you find wrong, and ask yourself "
            "whether the judge is right."
        )
    return f"{told}, {_judged_words(report)}. Nothing has to be done."


def _what_ends(report: Report) -> str:
    """Whether what was wrong is still served. One wrong outcome alone ends no proof."""
    concerned = [it for it in report["cells"] if may_be_served(it["cell"]) and it["wrong"]]
    if concerned and not any(it["proven"] for it in concerned):
        return "The kinds of match that had wrong ones are no longer served."
    return "Kinds of match that had wrong ones may still be served; one or two more, soon, end that."


def _found(report: Report) -> int:
    served = ("hit_exact", "hit_semantic", "joined", "shadow_exact", "shadow_semantic")
    return sum(report["results"].get(result, 0) for result in served)


def _share_found(report: Report) -> str:
    return share(_found(report) / report["requests"])


def _by_meaning(report: Report) -> int:
    return sum(report["results"].get(result, 0) for result in ("hit_semantic", "shadow_semantic"))


def _differing(report: Report) -> str:
    """That the model says other things to the very same request: then a kept answer is one of several."""
    counts = report["judged"]["exact"]
    judged = counts["right"] + counts["wrong"]
    if not counts["wrong"]:
        return ""
    return f" (the model worded {counts['wrong']:,} of {judged:,} otherwise the second time)"


def _judged_words(report: Report) -> str:
    wrong = report["wrong"]
    judged = wrong["right"] + wrong["wrong"]
    count = f"{wrong['wrong']:,}" if wrong["wrong"] else "none"
    return (
        f"{count} wrong of {judged:,} judged (at most {_rounded_up(wrong['at_most'])} with "
        f"{wrong['confidence']:.0%} confidence)"
    )


def _rounded_up(limit: float) -> str:
    return f"{ceil(limit * 1e3) / 10:.1f}%"


def _missing(report: Report) -> str:
    """How far the first proof is, if there is none and such matches have been right at all."""
    cells = [it for it in report["cells"] if may_be_served(it["cell"]) and it["right"]]
    if not cells or any(it["proven"] for it in cells):
        return ""
    nearest = min(cells, key=lambda cell: cell["missing"])
    return f" (the first proof wants {nearest['missing']:,} more right answers in a row)"
