"""A script that gets items while Ctrl-C comes again and again, and tells which it has got.

Arguments: the kind of queue, its URL, how many items there are, and "once" or "again": whether Ctrl-C may come while
the one before is still being settled.
"""

import json
import signal
import sys
from types import FrameType

from apressure import AsyncQueue, EventQueue, QueueEmptyError
from apressure.sync import Queue

kind, url, count, how = sys.argv[1:]


class Interrupt:
    """Raises what Ctrl-C raises, but only during `get` and until its result has a name: that is what is tested."""

    armed = False
    count = 0

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        if self.armed:
            self.armed = how == "again"
            self.count += 1
            raise KeyboardInterrupt


ctrl_c = Interrupt()
signal.signal(signal.SIGINT, ctrl_c)
items: list[str] = []
if kind == "events":
    source = EventQueue("jobs", url=url, codec="text")
else:
    source = AsyncQueue("jobs", url=url, codec="text", scripting=kind == "server")
with Queue(source) as queue:
    print("ready", flush=True)
    while len(items) < int(count):
        item = None
        try:
            ctrl_c.armed = True
            item = queue.get(timeout=20)
            ctrl_c.armed = False
        except KeyboardInterrupt:
            ctrl_c.armed = False
        except QueueEmptyError:
            ctrl_c.armed = False
            break  # something was lost
        if item is not None:
            items.append(item)
print(json.dumps({"items": items, "interrupted": ctrl_c.count}), flush=True)
sys.stdin.readline()  # until no more signals come
