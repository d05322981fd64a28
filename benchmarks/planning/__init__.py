"""What plan_regret.py measures on real engines."""
