"""What was found, as files that can be traced and never half-written."""
