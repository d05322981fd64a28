"""Says what a fix would bring: replays a window's traffic through a virtual engine with fitted costs."""
