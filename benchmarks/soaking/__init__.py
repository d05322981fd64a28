"""What soak.py is made of."""
