"""What may be answered from a cache, and when a match by meaning is safe. No clock, no chance, no IO."""
