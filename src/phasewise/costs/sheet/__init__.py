"""A model's sheet: every figure of a deployment with its formula and the numbers filled in."""
