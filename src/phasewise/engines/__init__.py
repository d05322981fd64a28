"""Kinds of engines behind one port: what each calls its metrics, phase times and flags. Pure."""
