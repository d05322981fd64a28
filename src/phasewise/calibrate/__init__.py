"""How long do this engine's steps take? Probes for every regime, and the fit to what they show."""
