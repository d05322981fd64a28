"""The plugin is a package of its own, for the engine's environment: tests read it from the source tree."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "engine_plugin"))
