"""The event loop that commands run in: uvloop where it is installed, else asyncio's own."""

from __future__ import annotations

import asyncio

try:
    import uvloop
except ImportError:
    run = asyncio.run
else:
    run = uvloop.run
