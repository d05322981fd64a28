"""The plugin is a package of its own, for the engine's environment: tests read it from the source tree."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
# The tests' own folder too: the stand-ins are found by name whatever import mode pytest is in.
sys.path[:0] = [str(HERE.parents[1] / "engine_plugin"), str(HERE)]
