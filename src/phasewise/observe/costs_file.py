"""The file that keeps a calibration's costs: `calibrate --save` writes it, `diagnose --costs` reads it."""

from __future__ import annotations

from pathlib import Path

import orjson

from phasewise.costs.fit_record import fit_from_record, fit_record
from phasewise.costs.step_fit import StepFit
from phasewise.errors import ConfigError


def save_fit(path: Path, fit: StepFit) -> None:
    """Write the costs; a file that was there before is replaced whole or not at all."""
    fresh = path.with_name(f".{path.name}.new")
    try:
        fresh.write_bytes(orjson.dumps(fit_record(fit), option=orjson.OPT_INDENT_2))
        fresh.replace(path)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written ({error.strerror})", hint="give a file in a folder of yours"
        ) from error


def load_fit(path: Path) -> StepFit:
    """Read costs that a calibration saved."""
    try:
        return fit_from_record(orjson.loads(path.read_bytes()))
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read ({error.strerror})", hint="phasewise calibrate URL --save FILE writes one"
        ) from error
    except orjson.JSONDecodeError as error:
        raise ConfigError(
            f"{path} is not JSON", hint="phasewise calibrate URL --save FILE writes such a file"
        ) from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}", hint=error.hint) from error
