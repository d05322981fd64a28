"""Is B better than A? Two servers, the same requests in turn, and a verdict that knows its own noise."""
