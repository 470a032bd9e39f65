"""Help for tests: the contract that every kind of queue keeps."""
