"""Events in the format of okq, for many competing consumers: the steps on the server, and `EventQueue`."""
