"""Load and what is measured with it: bench, compare, calibrate.

Not named `bench`: `phasewise.bench` is the function of the Python API.
"""
