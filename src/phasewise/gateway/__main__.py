"""`python -m phasewise.gateway FILE` runs a gateway process."""

from __future__ import annotations

import sys
from pathlib import Path

from phasewise.config import load_gateway_file
from phasewise.errors import PhasewiseError
from phasewise.gateway.server import serve


def main(argv: list[str]) -> int:
    """Run until told to stop; a file that cannot be used is exit code 2."""
    if len(argv) != 1:
        print("usage: python -m phasewise.gateway FILE", file=sys.stderr)
        return 2
    try:
        serve(load_gateway_file(Path(argv[0])))
    except PhasewiseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
