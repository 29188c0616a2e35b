"""The child process: one trial in, one result out."""
