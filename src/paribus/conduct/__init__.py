"""Runs that depend on what was found."""
