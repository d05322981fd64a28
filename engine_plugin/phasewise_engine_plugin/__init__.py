"""The part of phasewise that lives inside a vLLM engine: a step recorder and mends for small hosts.

It only records and hands out; joining steps with requests and judging them is phasewise's job.
"""

__version__ = "0.2.0"
