"""Where models and examples come from, read without torch."""
