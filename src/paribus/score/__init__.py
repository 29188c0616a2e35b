"""Score one model the same way whatever trained it."""
