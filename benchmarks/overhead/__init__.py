"""What gateway_overhead.py is made of: the tools, the gateways, the loads and the figures."""
