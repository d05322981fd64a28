"""Finds engines while the gateway serves: in Kubernetes, or by a name in DNS."""
