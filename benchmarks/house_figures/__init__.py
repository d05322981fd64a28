"""How easy the source is to enter, in figures."""
