"""Decisions over a snapshot: pure functions that change nothing."""
