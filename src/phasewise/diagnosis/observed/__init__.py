"""What a watch saw, before any judgement, and its file format."""
