"""The rules: each claims the parts of a phase's latency that its cause explains, special ones first."""
