"""Plans a fleet: the cheapest one that meets its objectives in the simulator."""
