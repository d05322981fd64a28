"""Several processes that serve as one gateway."""
