"""The gateway: an OpenAI-compatible server before a fleet of engines that times every phase of a request."""
