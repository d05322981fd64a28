"""The work of commands without a terminal: the Python API, which the command line shares."""
