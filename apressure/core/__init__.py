"""What all kinds of queue share. It knows no kind of queue, and no server: what takes the steps is a driver."""
