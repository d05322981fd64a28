"""What benchmarks/bad_input.py sends, and how it judges what comes back."""
