"""Makes `tiny`, the models and rows that several rooms test with, importable from every room."""

import signal

# A shell starts background jobs with Ctrl-C ignored, which all they start inherit; tests of Ctrl-C need it.
signal.signal(signal.SIGINT, signal.default_int_handler)
