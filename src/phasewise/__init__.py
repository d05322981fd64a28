"""phasewise: the phase-aware serving layer for vLLM fleets."""

__version__ = "0.1.0"
