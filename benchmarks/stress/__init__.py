"""What benchmarks under load have in common: processes, and clients that stream."""
