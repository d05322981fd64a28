"""Parts of the benchmarks that break streams and look at how they go on."""
