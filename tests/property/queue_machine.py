"""A Hypothesis state machine: AsyncQueue on a real server against a deque.

Each rule runs one operation that cannot block, and says what it must give. After each, the server's own keys are
compared with the model: contents and order, statistics, roles, permits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
import redis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from apressure import (
    AsyncQueue,
    Delivery,
    PressureError,
    QueueAlreadyExistsError,
    QueueClosedError,
    QueueDoesNotExistError,
    QueueEmptyError,
    QueueFullError,
    QueueInUseError,
    QueueOpenError,
)
from tests.reference import own_keys, snapshot

T = TypeVar("T")

BASE = "__pressure__:machine"
PATIENCE = 20.0
sizes = st.integers(0, 3)
portions = st.lists(sizes, max_size=6)


class BodyError(Exception):
    """What the body of a consumer's block raises."""


class QueueMachine(RuleBasedStateMachine):
    """Two objects on one queue: `queue` does most, `other` is the one that finds roles taken."""

    url = ""
    scripting = True

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.db = redis.Redis.from_url(self.url)
        self.queue: AsyncQueue[bytes] = AsyncQueue("machine", url=self.url, scripting=self.scripting)
        self.other: AsyncQueue[bytes] = AsyncQueue("machine", url=self.url, scripting=self.scripting)
        self.serial = 0
        self.exists = False
        self.reset(0)

    def reset(self, bound: int) -> None:
        self.bound = bound
        self.closed = False
        self.waiting: deque[bytes] = deque()
        self.in_flight: list[tuple[Delivery[bytes], bytes]] = []
        self.attempts: dict[bytes, int] = {}
        self.produced: list[bytes] = []
        self.consumed: list[bytes] = []

    # The ways to look at an operation

    def run(self, operation: Awaitable[T]) -> T:
        async def in_time() -> T:
            async with asyncio.timeout(PATIENCE):
                return await operation

        return self.runner.run(in_time())

    def refused(self, operation: Awaitable[Any], kind: type[PressureError]) -> PressureError:
        with pytest.raises(kind) as raised:
            self.run(operation)
        assert raised.type is kind
        return raised.value

    def message(self, size: int) -> bytes:
        """A message that no other equals."""
        self.serial += 1
        return b"%d" % self.serial + b"." * size

    @property
    def room(self) -> int:
        return max(0, self.bound - len(self.waiting)) if self.bound else 10**6

    # The life of the queue

    @initialize(bound=st.integers(0, 4))
    def begin(self, bound: int) -> None:
        self.create(bound)

    @rule(bound=st.integers(0, 4))
    def create(self, bound: int) -> None:
        if self.exists:
            self.refused(self.queue.create(bound), QueueAlreadyExistsError)
            assert self.run(self.queue.create(bound, exist_ok=True)) is False
        else:
            assert self.run(self.queue.create(bound)) is True
            self.exists = True
            self.reset(bound)

    @rule()
    def close(self) -> None:
        if not self.exists:
            self.refused(self.queue.close(), QueueDoesNotExistError)
        elif self.closed:
            self.refused(self.queue.close(), QueueClosedError)
        else:
            self.run(self.queue.close())
            self.closed = True

    @rule()
    def wait_closed(self) -> None:
        if not self.exists:
            self.refused(self.queue.wait_closed(), QueueDoesNotExistError)
        elif self.closed:
            self.run(self.queue.wait_closed())
        else:
            self.refused(self.queue.wait_closed(timeout=0), QueueOpenError)

    @rule(often=st.integers(0, 3))
    def delete(self, often: int) -> None:
        if often:
            return  # a machine that always deletes sees little else
        if self.in_flight:
            self.refused(self.queue.delete(), QueueInUseError)
            self.refused(self.other.delete(timeout=0), QueueInUseError)
            # The queue has ended for everybody; who has something in flight learns of it.
            for delivery, _ in self.in_flight:
                self.refused(delivery.ack(), QueueDoesNotExistError)
        elif self.exists:
            self.run(self.other.delete())
            assert not self.db.keys(f"{BASE}*")
            assert not own_keys(self.db, lasting=True)
        else:
            self.refused(self.queue.delete(), QueueDoesNotExistError)
        self.exists = False
        self.reset(0)

    # Puts

    @rule(size=sizes, how=st.sampled_from(["timeout", "nowait", "force", "other", "producer"]))
    def put(self, size: int, how: str) -> None:
        message = self.message(size)

        async def through_a_producer() -> None:
            async with self.queue.producer(close=False) as producer:
                await producer.put(message, timeout=0)

        operation = {
            "timeout": lambda: self.queue.put(message, timeout=0),
            "nowait": lambda: self.queue.put_nowait(message),
            "force": lambda: self.queue.put(message, force=True),
            "other": lambda: self.other.put_nowait(message),
            "producer": through_a_producer,
        }[how]()
        if not self.exists:
            self.refused(operation, QueueDoesNotExistError)
        elif self.closed:
            self.refused(operation, QueueClosedError)
        elif not self.room and how != "force":
            self.refused(operation, QueueFullError)
        else:
            self.run(operation)
            self.accept([message])

    @rule(portion=portions, force=st.booleans())
    def put_many(self, portion: list[int], force: bool) -> None:
        messages = [self.message(size) for size in portion]
        operation = self.queue.put_many(messages, timeout=0, force=force)
        if not messages:
            assert self.run(operation) == 0
        elif not self.exists:
            self.refused(operation, QueueDoesNotExistError)
        elif self.closed:
            self.refused(operation, QueueClosedError)
        elif force or self.room >= len(messages):
            assert self.run(operation) == len(messages)
            self.accept(messages)
        else:
            error = self.refused(operation, QueueFullError)
            assert isinstance(error, QueueFullError)
            assert error.accepted == self.room
            self.accept(messages[: self.room])

    def accept(self, messages: list[bytes]) -> None:
        self.waiting.extend(messages)
        self.produced += messages

    # Gets

    @rule(most=st.integers(1, 6), how=st.sampled_from(["get", "nowait", "many", "other", "iterate"]))
    def get(self, most: int, how: str) -> None:
        if how == "iterate" and not (self.waiting or self.closed or self.in_flight or not self.exists):
            return  # it would wait
        operations: dict[str, Callable[[], Awaitable[Any]]] = {
            "get": lambda: self.queue.get(timeout=0),
            "nowait": self.queue.get_nowait,
            "many": lambda: self.queue.get_many(most, timeout=0),
            "other": lambda: self.other.get_many(most, timeout=0),
            "iterate": lambda: anext(aiter(self.queue), b"the end"),
        }
        operation = operations[how]()
        if self.in_flight:
            error = self.refused(operation, QueueInUseError)
            assert isinstance(error, QueueInUseError)
            assert error.holder == self.queue.client.id
        elif not self.exists:
            self.refused(operation, QueueDoesNotExistError)
        elif not self.waiting and self.closed:
            if how == "iterate":
                assert self.run(operation) == b"the end"
            else:
                self.refused(operation, QueueClosedError)
        elif not self.waiting:
            self.refused(operation, QueueEmptyError)
        else:
            got = self.run(operation)
            got = got if isinstance(got, list) else [got]
            expected = [self.waiting.popleft() for _ in got]
            assert got == expected
            assert len(got) == (min(most, len(got) + len(self.waiting)) if how in ("many", "other") else 1)
            self.consumed += got

    @rule(newest=st.booleans())
    def peek(self, newest: bool) -> None:
        operation = self.queue.peek_newest() if newest else self.queue.peek()
        if not self.exists:
            self.refused(operation, QueueDoesNotExistError)
        elif not self.waiting:
            self.refused(operation, QueueEmptyError)
        else:
            assert self.run(operation) == self.waiting[-1 if newest else 0]

    # Deliveries

    @precondition(lambda self: self.scripting)
    @rule()
    def receive(self) -> None:
        operation = self.queue.receive(timeout=0)
        if not self.exists:
            self.refused(operation, QueueDoesNotExistError)
        elif not self.waiting:
            self.refused(operation, QueueClosedError if self.closed else QueueEmptyError)
        else:
            delivery = self.run(operation)
            message = self.waiting.popleft()
            assert delivery.raw == delivery.item == message
            self.attempts[message] = self.attempts.get(message, 0) + 1
            assert delivery.attempts == self.attempts[message]
            self.in_flight.append((delivery, message))

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data(), how=st.sampled_from(["ack", "nack", "extend"]))
    def settle(self, data: st.DataObject, how: str) -> None:
        index = data.draw(st.integers(0, len(self.in_flight) - 1))
        delivery, message = self.in_flight[index]
        if how == "extend":
            self.run(delivery.extend(60))
            return
        del self.in_flight[index]
        if how == "ack":
            self.run(delivery.ack())
            self.consumed.append(message)
        else:
            self.run(delivery.nack())
            self.waiting.appendleft(message)

    @precondition(lambda self: self.scripting and self.exists and not self.in_flight)
    @rule(count=st.integers(0, 4), prefetch=st.sampled_from([None, 1, 3]), fails=st.booleans())
    def consume(self, count: int, prefetch: int | None, fails: bool) -> None:
        count = min(count, len(self.waiting))
        expected = [self.waiting[index] for index in range(count)]

        async def block() -> list[bytes]:
            got: list[bytes] = []
            try:
                async with self.queue.consumer(prefetch=prefetch) as consumer:
                    for message in expected:
                        got.append(await anext(consumer))
                        assert consumer.attempts == self.attempts.get(message, 0) + 1
                    if fails:
                        raise BodyError
            except BodyError:
                pass
            return got

        assert self.run(block()) == expected
        done = expected[:-1] if fails else expected
        for message in done:
            assert self.waiting.popleft() == message
        self.consumed += done
        if fails and expected:
            self.attempts[expected[-1]] = self.attempts.get(expected[-1], 0) + 1

    @rule()
    def unblock(self) -> None:
        assert self.run(self.queue.unblock()) == 0

    # What must be true after each

    @invariant()
    def the_server_has_what_the_model_has(self) -> None:
        assert self.run(self.queue.exists()) == self.exists
        if not self.exists:
            self.refused(self.queue.statistics(), QueueDoesNotExistError)
            return
        keys = snapshot(self.db, "__pressure__", "machine")
        assert keys["messages"] == list(self.waiting)
        assert keys[":bound"] == b"%d" % self.bound
        assert bool(keys[":closed"]) == self.closed
        assert keys[":not_full"] == (1 if self.room else 0)
        assert keys[":producer_free"] == 1
        assert keys[":consumer_free"] == (0 if self.in_flight else 1)
        statistics = self.run(self.queue.statistics())
        assert (statistics.length, statistics.closed) == (len(self.waiting), self.closed)
        assert statistics.in_flight == len(self.in_flight)
        assert (statistics.produced_messages, statistics.produced_bytes) == total(self.produced)
        assert (statistics.consumed_messages, statistics.consumed_bytes) == total(self.consumed)
        assert (statistics.waiting_putters, statistics.waiting_receivers) == (0, 0)

    def teardown(self) -> None:
        self.run(self.queue.aclose())  # gives back the messages in flight
        if self.exists:
            self.run(self.other.delete())
        self.run(self.other.aclose())
        self.runner.close()
        self.db.flushall()
        self.db.close()


def total(messages: list[bytes]) -> tuple[int, int]:
    return len(messages), sum(map(len, messages))
