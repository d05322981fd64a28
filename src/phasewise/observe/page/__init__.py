"""A verdict for people: the words that the screen and the page share, and the page itself."""
