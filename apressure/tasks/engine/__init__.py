"""What the steps on a queue of tasks are made of: keys, scripts, answers, lanes and waits."""
