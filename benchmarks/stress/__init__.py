"""What overload.py, drain.py and through_gateway.py have in common: processes, and clients that stream."""
