"""How a queue of events works on the server: keys, steps, what they answer, lanes and waits."""
