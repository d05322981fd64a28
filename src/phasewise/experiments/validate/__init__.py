"""Checks on this machine which of the published claims hold: `phasewise engine validate`."""
