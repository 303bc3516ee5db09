"""Trusted planes of a space: parts that read and write for its members (C9, 13.9)."""
