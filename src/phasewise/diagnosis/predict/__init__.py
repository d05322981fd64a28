"""Predicts the effect of a fix: replays a window's traffic through a virtual engine with fitted costs."""
