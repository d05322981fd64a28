"""The part of phasewise inside a vLLM engine: a step recorder, a guard, and fixes for small hosts."""

__version__ = "0.3.0"
