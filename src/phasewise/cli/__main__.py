"""`python -m phasewise.cli` is the `phasewise` command."""

from phasewise.cli.app import main

main()
