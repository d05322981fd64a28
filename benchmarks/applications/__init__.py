"""What benchmarks/ordinary.py sends as applications, proxies and SDKs do, and how it reads the answers."""
