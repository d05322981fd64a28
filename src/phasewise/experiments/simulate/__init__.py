"""Simulates a fleet under a workload, and reports what its users would see."""
