"""A validation report as a page, on the screen and as a line of docs/validated.md."""
