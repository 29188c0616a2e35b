"""Makes `tiny`, the models and rows that several rooms test with, importable from every room."""
