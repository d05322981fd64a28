"""Tests a fix: predicts its effect, applies it to a copy of the fleet, and measures both."""
