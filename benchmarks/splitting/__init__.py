"""Parts of benchmarks/split_decision.py."""
