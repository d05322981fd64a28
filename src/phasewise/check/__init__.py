"""Whether engines hand over KV as their fleet's file means them to, proved by their own counters."""
