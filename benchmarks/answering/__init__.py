"""What the benchmarks of the answer cache have in common."""
