"""The load generator: executes a plan against an address, measures as a client, and reports."""
