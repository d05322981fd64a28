"""The endpoint picker: Envoy asks where a request goes, over ext_proc, and carries the bytes itself."""
