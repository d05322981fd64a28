"""What sim_fidelity.py measures and how it is held against the simulator."""
