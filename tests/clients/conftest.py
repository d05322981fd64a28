import sys

from tests.paths import ROOT

# The step feed is tried against the very recorder that answers in the engine's process.
sys.path.insert(0, str(ROOT / "engine_plugin"))
