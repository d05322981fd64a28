"""The gateway: an OpenAI-compatible server in front of a fleet of engines.

It times every phase of a request.
"""
