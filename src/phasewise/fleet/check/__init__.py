"""Checks that engines transfer KV as the fleet file configures them, proved by their own counters."""
