"""Reads the requests that an engine lists, many times a second, as steps."""

from __future__ import annotations

import time
from collections.abc import Callable

from phasewise.clients.http_client import HttpClient
from phasewise.core.errors import UpstreamError
from phasewise.core.steps import EngineStep
from phasewise.engines.listed_requests import ReadListing, StepsFromListings
from phasewise.engines.port import Engine


class ListingFeed:
    """Follows one engine."""

    def __init__(self, client: HttpClient, engine: Engine, clock: Callable[[], float] = time.time) -> None:
        self._client = client
        self._engine = engine
        self._clock = clock
        self._steps = StepsFromListings()

    async def poll(self, waiting: int | None) -> tuple[EngineStep, ...] | None:
        """The steps since the last poll; None if it lists nothing. `waiting` requests have no slot."""
        asked_s = self._clock()
        try:
            reply = await self._client.fetch("GET", self._engine.LISTING_PATH or "/")
        except UpstreamError:
            return None
        listing = self._engine.parse_listing(reply.body) if reply.status == 200 else None
        if listing is None:
            return None
        return self._steps.add(ReadListing(listing, asked_s, self._clock(), waiting))
