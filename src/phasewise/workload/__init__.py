"""What is asked of an engine, and when: everything follows from a seed, nothing is sent from here."""
