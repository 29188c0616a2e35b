"""Which weights train, one file a method family."""
