"""How operations wait until a step is worth another try: for every kind of queue that is on a server."""
