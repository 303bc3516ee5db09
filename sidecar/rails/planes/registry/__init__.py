"""The registry of a space: what endpoints there are, and what a caller may ask of them (13.20)."""
