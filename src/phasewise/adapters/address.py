"""Addresses as people type them."""

from __future__ import annotations


def origin(url: str) -> str:
    """The address without the /v1 that clients of the OpenAI library add to it."""
    return url.rstrip("/").removesuffix("/v1")
