"""Compare what was recorded, with intervals, beside what was claimed."""
