"""Run what is pending and lose nothing."""
