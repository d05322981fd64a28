"""Stretches of a window, so that many replays of a long one stay quick, and each sees other requests.

What a measurement finds also depends on which requests it happens to meet: stretches show that, too.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from phasewise.predict.traffic import RecordedRequest, Traffic

TOKENS_OF_STRETCH = 3_000
"""Output tokens of one replay: each costs some ten microseconds, and a prediction is some sixty replays."""
TURNS_OF_CLIENT = 3
"""A closed loop has so many requests of each client, at least: its first ones meet no crowd, and its last
ones outlive it."""


def drawn_stretch(traffic: Traffic, rng: np.random.Generator) -> Traffic:
    """Requests that followed each other, enough of them for a replay; all, where they are not too many.

    Those that were still open when the stretch begins come first and do not count: nobody meets an idle
    engine there. In a closed loop any request might have come at any time, so they come in another order.
    """
    if traffic.concurrency is not None:
        traffic = replace(traffic, requests=_shuffled(traffic.requests, rng))
    requests = traffic.requests
    tokens = np.cumsum([request.output_tokens for request in requests])
    if tokens[-1] <= TOKENS_OF_STRETCH:
        return traffic
    latest = int(np.searchsorted(tokens, tokens[-1] - TOKENS_OF_STRETCH))
    fewest = TURNS_OF_CLIENT * (traffic.concurrency or 0) + traffic.warm_up
    latest = max(min(latest, len(requests) - fewest), 0)
    first = int(rng.integers(latest + 1))
    beyond = TOKENS_OF_STRETCH + (tokens[first - 1] if first else 0)
    after = int(np.searchsorted(tokens, beyond)) + 1
    if traffic.concurrency is not None:
        return replace(traffic, requests=requests[first : max(after, first + fewest)])
    began_s = requests[first].came_s
    still_open = tuple(each for each in requests[:first] if each.went_s > began_s)
    return replace(traffic, requests=still_open + requests[first:after], warm_up=len(still_open))


def _shuffled(requests: tuple[RecordedRequest, ...], rng: np.random.Generator) -> tuple[RecordedRequest, ...]:
    return tuple(requests[at] for at in rng.permutation(len(requests)))
