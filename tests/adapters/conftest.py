import sys
from pathlib import Path

# The step feed is tried against the very recorder that answers in the engine's process.
sys.path.insert(0, str(Path(__file__).parents[2] / "engine_plugin"))
