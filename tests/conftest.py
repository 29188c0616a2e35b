"""Makes `tiny`, the models and rows that several rooms test with, importable from every room."""

import signal

# A shell starts background jobs with Ctrl-C ignored, and what they start inherits that; tests of Ctrl-C need it.
signal.signal(signal.SIGINT, signal.default_int_handler)
