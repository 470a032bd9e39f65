"""A directory as a queue: names, atomic operations on files, and an index of them."""
