"""What is wrong with a queue, in words, and how it is repaired."""
