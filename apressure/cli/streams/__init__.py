"""Items on standard input and output: framing, pipes, progress."""
