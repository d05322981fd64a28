"""What is asked of an engine, and when: everything follows from a seed, and nothing is sent."""
