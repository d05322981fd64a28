"""The file that keeps a calibration's costs: `calibrate --save` writes it, `diagnose --costs` reads it."""

from __future__ import annotations

from pathlib import Path

import orjson

from phasewise.core.errors import ConfigError
from phasewise.costs.fit.record import fit_from_record, fit_record
from phasewise.costs.fit.step_fit import StepFit


def save_fit(path: Path, fit: StepFit) -> None:
    """Write the costs; an existing file is replaced atomically."""
    fresh = path.with_name(f".{path.name}.new")
    try:
        fresh.write_bytes(orjson.dumps(fit_record(fit), option=orjson.OPT_INDENT_2))
        fresh.replace(path)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written ({error.strerror})", hint="give a file in a writable folder"
        ) from error


def load_fit(path: Path) -> StepFit:
    try:
        return fit_from_record(orjson.loads(path.read_bytes()))
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read ({error.strerror})",
            hint="create one with `phasewise engine calibrate URL --save FILE`",
        ) from error
    except orjson.JSONDecodeError as error:
        raise ConfigError(
            f"{path} is not JSON", hint="create one with `phasewise engine calibrate URL --save FILE`"
        ) from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}", hint=error.hint) from error
