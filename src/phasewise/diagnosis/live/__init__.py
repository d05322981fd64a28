"""The live view: what is slow right now, from what a gateway or an engine shows every second."""
