"""What is read from, and done to, the file of one message."""
