"""How long do this engine's steps take? Probes for every kind of step, and a fit to the observed times."""
