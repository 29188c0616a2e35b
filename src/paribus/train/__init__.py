"""Train one trial."""
