"""Proves or refutes a fix: predicts, applies it to a copy of the fleet, measures both, keeps the score."""
