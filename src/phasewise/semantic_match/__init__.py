"""What may be answered from a cache, and when a semantic match is safe. No clock, no randomness, no IO."""
