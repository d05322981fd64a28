"""A vLLM look-alike for tests of speed and faults: a virtual engine and a server that runs it.

Models and weights are left to the real engine; tests/contract runs one suite against both.
"""
