"""Fault kinds that no rule knows; only held-out scenes have them.

`creep` makes every step slower with the number of steps since the engine's start, as fragmented memory does.
`admission_lock` stops the engine whenever a request is admitted, as the compilation of a grammar does. Right
is the phase, and no known cause.
"""

HELD_OUT_ONLY = ("creep", "admission_lock")
