"""Turns timelines, steps and counters into a verdict."""
