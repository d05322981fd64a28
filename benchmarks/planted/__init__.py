"""Causes planted on purpose, so that a verdict can be held against what is known to be true."""
