"""What a fleet would do and need: plans, simulations, and what each lever does to each phase."""
