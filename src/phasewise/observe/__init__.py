"""Looks at a live endpoint: finds out what it is, watches it or probes it, and puts the evidence together."""
