"""What tests on a card put in the place of a file's tables."""

NO_ROWS = "head dims"
"""A table by which no kernel of the chip's own runs, so the portable ones do."""
