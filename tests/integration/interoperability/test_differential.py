"""The reference client does on one queue what apressure does on another: after each step the keys look alike."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import redis

from apressure import AsyncQueue
from tests.integration.conftest import eventually
from tests.integration.interoperability.both import (
    BOUNDS,
    PREFIX,
    SOON,
    nothing_left,
    open_queue,
    outcome_of,
)
from tests.reference import ReferenceQueue, snapshot

Operation = tuple[str, *tuple[Any, ...]]


class Twins:
    """A queue of apressure's and a queue of the reference's that go through the same."""

    def __init__(self, db: redis.Redis, ours: AsyncQueue[bytes], theirs: ReferenceQueue) -> None:
        self.db = db
        self.ours = ours
        self.theirs = theirs
        self.done: list[Operation] = []

    async def do(self, *operation: Any) -> Any:
        """Do it on both queues; they must give the same and look the same afterwards. Returns what they gave."""
        self.done.append(operation)
        name, *arguments = operation
        if name in {"take", "return"}:
            self._by_hand(name, *arguments)
            got = expected = None
        else:
            got = await outcome_of(self._on_ours(name, *arguments))
            expected = await outcome_of(asyncio.to_thread(self._on_theirs, name, *arguments))
        assert got == expected, f"{self._story()}\nours: {got!r}\nreference: {expected!r}"
        await self.must_look_alike()
        return got

    async def must_look_alike(self) -> None:
        """Soon: a wait of ours that ended by its timeout may yet return a role that came at the last moment."""
        if not await eventually(lambda: self._seen("ours") == self._seen("theirs")):
            assert self._seen("ours") == self._seen("theirs"), self._story()

    def _story(self) -> str:
        return f"after {self.done}"

    def _seen(self, name: str) -> dict[str, Any]:
        seen = snapshot(self.db, PREFIX, name)
        identities = {self.ours.client.id.encode(): b"client", b"reference": b"client"}
        for role in (":producer", ":consumer"):
            seen[role] = identities.get(seen[role], seen[role])
        return seen

    def _by_hand(self, verb: str, role: str) -> None:
        """Somebody takes a role, or returns it."""
        for name in ("ours", "theirs"):
            key = f"{PREFIX}:{name}:{role}_free"
            if verb == "take":
                assert self.db.rpop(key) is not None
            else:
                self.db.lpush(key, 1)

    async def _on_ours(self, name: str, *arguments: Any) -> Any:
        match name:
            case "create":
                await self.ours.create(*arguments)
            case "put":
                (message,) = arguments
                await self.ours.put(message, timeout=SOON)
            case "put_nowait":
                await self.ours.put_nowait(*arguments)
            case "get":
                return await self.ours.get(timeout=SOON)
            case "get_nowait":
                return await self.ours.get_nowait()
            case "close":
                await self.ours.close(timeout=SOON)
            case "delete":
                await self.ours.delete(timeout=SOON)
            case "length":
                return await self.ours.qsize()
            case "exists":
                return await self.ours.exists()
            case "closed":
                return await self.ours.closed()
        return None

    def _on_theirs(self, name: str, *arguments: Any) -> Any:
        waits = name in {"put", "get", "close", "delete"}
        return getattr(self.theirs, name)(*arguments, **({"timeout": SOON} if waits else {}))


@contextlib.asynccontextmanager
async def twins_of(url: str, db: redis.Redis, scripting: bool) -> AsyncIterator[Twins]:
    async with open_queue(url, "ours", scripting=scripting) as ours:
        yield Twins(db, ours, ReferenceQueue(db, "theirs"))


@pytest.mark.parametrize("bound", BOUNDS)
async def test_each_operation_leaves_what_the_reference_leaves(
    url: str, db: redis.Redis, scripting: bool, bound: int
) -> None:
    async with twins_of(url, db, scripting) as twins:
        await twins.do("exists")
        await twins.do("create", bound)
        assert await twins.do("create", bound) == "QueueAlreadyExistsError"
        assert await twins.do("exists") is True
        assert await twins.do("get_nowait") == "QueueEmptyError"
        assert await twins.do("get") == "QueueEmptyError"
        room = bound or 3
        for number in range(room):
            await twins.do("put" if number % 2 else "put_nowait", b"message %d" % number)
        if bound:
            assert await twins.do("put_nowait", b"too much") == "QueueFullError"
            assert await twins.do("put", b"too much") == "QueueFullError"
        assert await twins.do("get") == b"message 0"
        await twins.do("put", b"")
        if not bound:
            await twins.do("put_nowait", bytes(range(256)))
        assert await twins.do("closed") is False
        await twins.do("close")
        assert await twins.do("closed") is True
        for operation in ("put", "put_nowait"):
            assert await twins.do(operation, b"late") == "QueueClosedError"
        assert await twins.do("close") == "QueueClosedError"
        for _ in range(await twins.do("length")):
            await twins.do("get")
        assert await twins.do("get") == "QueueClosedError"
        assert await twins.do("get_nowait") == "QueueClosedError"
        await twins.do("delete")
        for operation in ("delete", "close", "get", "get_nowait", "length", "closed"):
            assert await twins.do(operation) == "QueueDoesNotExistError"
        for operation in ("put", "put_nowait"):
            assert await twins.do(operation, b"never") == "QueueDoesNotExistError"
        assert await twins.do("exists") is False
        assert nothing_left(db)


async def test_a_role_that_somebody_holds(url: str, db: redis.Redis, scripting: bool) -> None:
    async with twins_of(url, db, scripting) as twins:
        await twins.do("create", 2)
        await twins.do("put", b"1")
        await twins.do("take", "producer")
        for operation in ("put", "put_nowait"):
            assert await twins.do(operation, b"2") == "QueueInUseError"
        assert await twins.do("close") == "QueueInUseError"
        assert await twins.do("get") == b"1"
        await twins.do("return", "producer")
        await twins.do("put", b"2")
        await twins.do("take", "consumer")
        for operation in ("get", "get_nowait"):
            assert await twins.do(operation) == "QueueInUseError"
        await twins.do("put", b"3")
        assert await twins.do("put_nowait", b"4") == "QueueFullError"
        await twins.do("return", "consumer")
        assert await twins.do("get") == b"2"
        await twins.do("delete")


@pytest.mark.leaves_keys(f"{PREFIX}:*")
@pytest.mark.parametrize("role", ["producer", "consumer"])
async def test_a_delete_that_finds_a_role_taken(url: str, db: redis.Redis, scripting: bool, role: str) -> None:
    """The queue has ended for everybody, and the role that it did get is free again."""
    async with twins_of(url, db, scripting) as twins:
        # Full, so that the value with which Delete wakes those who wait for room is the only one there.
        await twins.do("create", 1)
        await twins.do("put", b"1")
        await twins.do("take", role)
        ours, theirs = twins.ours.delete(timeout=SOON), asyncio.to_thread(twins.theirs.delete, SOON)
        assert [await outcome_of(ours), await outcome_of(theirs)] == ["QueueInUseError"] * 2
        # The specification's client has begun to delete what names the producer; ours deletes all at once.
        for name in ("ours", "theirs"):
            db.delete(f"{PREFIX}:{name}:producer")
        await twins.must_look_alike()
        for operation in ("delete", "get_nowait"):
            assert await twins.do(operation) == "QueueDoesNotExistError"


def random_story(seed: int, bound: int, length: int) -> Iterator[Operation]:
    """A sequence of operations that knows just enough of the queue to be worth doing.

    Few of them wait: a wait that ends by its timeout takes the server a tenth of a second.
    """
    pick = random.Random(f"{seed} {bound}")
    yield ("create", bound)
    taken: set[str] = set()
    for number in range(length):
        role = pick.choice(("producer", "consumer"))
        message = pick.randbytes(pick.choice((0, 1, 10, 1000)))
        choice: list[Operation] = [
            ("put", message),
            ("put_nowait", message),
            ("get",),
            ("get_nowait",),
            ("length",),
            ("role", role),
        ]
        (operation,) = pick.choices(choice, weights=[1, 7, 1, 6, 1, 1])
        if operation[0] == "role":
            operation = ("return" if role in taken else "take", role)
            taken ^= {role}
        yield operation
        if number == length * 2 // 3:
            yield ("close",)
    for role in taken:
        yield ("return", role)
    yield ("delete",)
    yield ("get_nowait",)


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("seed", range(2))
async def test_random_operations(url: str, db: redis.Redis, scripting: bool, bound: int, seed: int) -> None:
    async with twins_of(url, db, scripting) as twins:
        for operation in random_story(seed, bound, 40):
            await twins.do(*operation)
        assert nothing_left(db)
