"""Serving levers measured off and on: what each does to speed, to KV capacity and to the answers."""
