"""What the benchmark of the endpoint picker is made of."""
