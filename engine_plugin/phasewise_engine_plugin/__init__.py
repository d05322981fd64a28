"""The part of phasewise inside a vLLM engine: a step recorder, and fixes for small hosts."""

__version__ = "0.2.0"
