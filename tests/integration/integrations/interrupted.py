"""A script that waits in one operation of `apressure.sync` until Ctrl-C; then it tells what it sees, and goes on."""

import sys
import time

from apressure import AsyncQueue
from apressure.sync import Queue

operation, url = sys.argv[1:]

with Queue(AsyncQueue("jobs", url=url, codec="text")) as queue:
    print("ready", flush=True)
    try:
        if operation == "put":
            queue.put("too much")
        elif operation == "receive":
            queue.receive()
        else:
            with queue.consumer() as items:
                for item in items:
                    print(item, flush=True)
                    if item == "stop here":
                        # Until Ctrl-C. (An error in `while ...: pass` can miss its `except`, from Python 3.12 on.)
                        time.sleep(60)
    except KeyboardInterrupt:
        print("interrupted", queue.qsize(), flush=True)
        sys.stdin.readline()
