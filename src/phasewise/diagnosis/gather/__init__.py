"""Gathers the evidence of a live endpoint: identifies it, watches or probes it."""
