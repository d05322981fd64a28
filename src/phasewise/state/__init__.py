"""What a gateway knows right now: mutable, one writer each, no IO."""
