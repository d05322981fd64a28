"""What kv_transfer_faults.py is made of: pairs of engines, ways to break them, and a load."""
