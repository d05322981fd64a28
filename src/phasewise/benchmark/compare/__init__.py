"""Is B better than A? Two servers, the same requests alternately, and a verdict that accounts for noise."""
