"""Serving levers measured off and on: what each does to speed, to room and to the answers."""
