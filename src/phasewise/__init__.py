"""phasewise: the phase-aware serving layer for vLLM fleets.

`bench`, `compare`, `diagnose` and `model_sheet` do what the commands of these names do, and return results.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from phasewise.api.bench import BenchResult, bench, compare
    from phasewise.api.diagnose import Diagnosis, diagnose
    from phasewise.api.model_sheet import model_sheet
    from phasewise.benchmark.compare.verdict import ComparisonResult
    from phasewise.core.errors import PhasewiseError
    from phasewise.costs.sheet.facts import Sheet

__version__ = "0.1.0"
__all__ = [
    "BenchResult",
    "ComparisonResult",
    "Diagnosis",
    "PhasewiseError",
    "Sheet",
    "bench",
    "compare",
    "diagnose",
    "model_sheet",
]

_MODULES = {
    "BenchResult": "api.bench",
    "bench": "api.bench",
    "ComparisonResult": "benchmark.compare.verdict",
    "compare": "api.bench",
    "Diagnosis": "api.diagnose",
    "diagnose": "api.diagnose",
    "PhasewiseError": "core.errors",
    "Sheet": "costs.sheet.facts",
    "model_sheet": "api.model_sheet",
}
"""Where each name is defined: imported on first use, so that a plain `import phasewise` stays cheap."""


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
