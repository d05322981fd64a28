"""One request: in a list, explained as text, and drawn as a page."""
