"""The nouns: frozen, without IO, shared by every other package."""
