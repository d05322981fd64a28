"""Fault kinds that no rule knows, in two sets: no scene of one set has a fault of the other.

For tuning, `creep` makes every step slower with the number of steps since the engine's start, as fragmented
memory does. `admission_lock` stops the engine whenever a request is admitted, as the compilation of a grammar
does. `neighbour` makes all steps slower for stretches of time, as another job on the same accelerator does.
`drains_first` admits requests only once all that run have finished, as engines without continuous batching
do. Held out, `grammar_masks` makes every step slower in which certain requests get a token, as masks of
allowed tokens do that the host builds. `seldom_admits` lets a busy engine look at its queue only every so
many steps, as schedulers that plan many steps at once do. Right is the phase, and no known cause.
"""

TUNE_ONLY = ("creep", "admission_lock", "neighbour", "drains_first")
HELD_OUT_ONLY = ("grammar_masks", "seldom_admits")
