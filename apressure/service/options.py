"""The options of `serve` that change how a handler is called, and what happens before the first call."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable
from concurrent.futures import Executor
from typing import Any, Final

from apressure import validation
from apressure.protocols import Creatable, Observer, Replying

MAX_BATCH: Final = 1_000_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """How handlers are called. Without arguments: one item at a time, for as long as it takes.

    Attributes:
        timeout: Seconds for one handler; None for no limit.
        on_error: Called with the delivery and the error of each handler that failed.
        create: Create the queue before anything is received, unless it exists.
        bound: The bound of a queue that is created.
        batch: The handler gets a list of up to so many; None for one item instead of a list.
        linger: Seconds to wait for more after the first of a batch.
        key: Returns the key of an item: items of the same key are handled one after the other.
        rate: How many handlers may begin a second; None for no limit.
        executor: Where the handler, which is a synchronous function, runs; None for the event loop.
        observer: Looks on; None for nobody.
        reply: What a handler returns is the reply to its message.
    """

    timeout: float | None = None
    on_error: Callable[[Any, BaseException], object] | None = None
    create: bool = False
    bound: int | None = None
    batch: int | None = None
    linger: float = 0.0
    key: Callable[[Any], Hashable] | None = None
    rate: float | None = None
    executor: Executor | None = None
    observer: Observer | None = None
    reply: bool = False

    def check(self, queue: object, deliveries: bool, shared: bool | None) -> None:
        """Raise TypeError or ValueError for an invalid option."""
        validation.optional(validation.seconds, self.timeout, "timeout", above=True, none=True)
        if self.on_error is not None and not callable(self.on_error):
            raise TypeError(f"on_error must be a function, not {type(self.on_error).__name__}")
        if self.create and not isinstance(queue, Creatable):
            raise TypeError(f"create=True needs a queue with a method create(), which {type(queue).__name__} has not")
        if self.bound is not None:
            validation.whole(self.bound, "bound", 0)
            if not self.create:
                raise ValueError("bound= is the bound of the queue that create=True creates: add create=True")
        if self.observer is not None and not hasattr(self.observer, "observing"):
            raise TypeError(f"observer must have a method observing(), which {type(self.observer).__name__} has not")
        if self.reply:
            if not isinstance(queue, Replying):
                raise TypeError(f"reply=True needs a queue with a method ask(), which {type(queue).__name__} has not")
            queue.check_replies()
        self._check_selection(shared)
        if self.executor is not None:
            self._check_executor(deliveries)

    def _check_selection(self, shared: bool | None) -> None:
        """Check which items handlers get, and when."""
        validation.optional(validation.whole, self.batch, "batch", 1, MAX_BATCH)
        if validation.seconds(self.linger, "linger") and self.batch is None:
            raise ValueError("linger= is the time to wait for more items of a batch: add batch=")
        if self.key is not None:
            if not callable(self.key):
                raise TypeError(f"key must be a function of an item, not {type(self.key).__name__}")
            if self.batch is not None:
                raise ValueError("batch= cannot be combined with key=, which handles single items in order")
            if shared:
                raise ValueError(
                    "shared=True cannot be combined with key=, whose order holds in one process: other services of the "
                    "queue get items of the same keys"
                )
        if self.rate is not None:
            if isinstance(self.rate, bool) or not isinstance(self.rate, (int, float)):
                raise TypeError(f"rate must be a number of handlers a second, not {type(self.rate).__name__}")
            if not 0 < self.rate < math.inf:
                raise ValueError(f"rate must be more than 0 handlers a second, not {self.rate}")

    def _check_executor(self, deliveries: bool) -> None:
        if not isinstance(self.executor, Executor):
            raise TypeError(f"executor must be a concurrent.futures.Executor, not {type(self.executor).__name__}")
        if self.timeout is not None:
            raise ValueError(
                "timeout= cannot be combined with executor=: nothing can end a function that runs in a thread. Use the "
                "timeouts of what the function calls."
            )
        if deliveries:
            raise ValueError("deliveries=True cannot be combined with executor=: deliveries belong to the event loop")
