"""A model's sheet: every figure of a deployment with the formula that gives it, filled in."""
