"""The load generator: works a plan off against an address, measures as a client, and says what it saw."""
