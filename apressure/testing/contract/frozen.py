"""The part of the contract that is about `deadline=` while the server, or the disk, answers nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection
from typing import Any, ClassVar, Final

from apressure.exceptions import DeadlineError, PressureError, UnsupportedError
from apressure.testing.contract.steps import PATIENCE, Opener, drained, in_time
from apressure.testing.contract.verbs import LOOKS, VERBS, call

_SOON: Final = 0.2
"""Seconds: a deadline."""

_NEEDS: Final[dict[str, dict[str, Any]]] = {
    "put": {"item": b"put"}, "put_nowait": {"item": b"put_nowait"}, "put_many": {"items": [b"put_many"]},
    "get_many": {"max_items": 5}, "receive_many": {"max_items": 5}, "create": {"exist_ok": True},
}  # fmt: skip

_ENDS: Final = {"create", "close", "delete", "purge"}
"""Verbs that would disturb the others."""

Frozen = Callable[[], contextlib.AbstractContextManager[object]]


class FrozenContract:
    """`deadline=` of every verb holds while nothing answers; and nothing is lost or doubled.

    It needs a fixture `frozen`, which returns a block in which nothing answers the object that was opened first. That
    object should be one that would wait for much longer than the tests do.
    """

    knows: ClassVar[Collection[str]] = ()
    """Verbs whose answers an object may know without asking."""

    async def test_every_verb_ends_in_time_and_nothing_is_lost(self, open_queue: Opener, frozen: Frozen) -> None:
        queue = await self._filled(open_queue)
        with frozen():
            came = await _ask(queue, {*VERBS} - _ENDS)
        for verb, outcome in came.items():
            if (verb in self.knows and not isinstance(outcome, Exception)) or isinstance(outcome, UnsupportedError):
                continue
            assert isinstance(outcome, DeadlineError), (verb, outcome)
            assert verb not in LOOKS or type(outcome) is DeadlineError, verb
        await in_time(queue.qsize())  # what came too late has been settled
        owner = await open_queue()
        await in_time(owner.resume())
        await in_time(queue.aclose())
        items = await drained(owner)
        certain = {verb.encode() for verb in ("put", "put_nowait", "put_many") if type(came[verb]) is DeadlineError}
        assert items.count(b"0") == 1, items
        assert len(items) == len({*items}) <= 4
        assert not certain & {*items}

    async def test_every_end_ends_in_time(self, open_queue: Opener, frozen: Frozen) -> None:
        queue = await self._filled(open_queue)
        with frozen():
            came = await _ask(queue, _ENDS)
        for verb, outcome in came.items():
            assert isinstance(outcome, DeadlineError), (verb, outcome)
        owner = await open_queue()
        async with asyncio.timeout(PATIENCE):  # the late answers end the queue, or leave it closed
            while True:
                with contextlib.suppress(PressureError):
                    await owner.create(exist_ok=True)
                    await owner.delete()
                    break

    async def _filled(self, open_queue: Opener) -> Any:
        queue, owner = await open_queue(), await open_queue()
        await owner.create()
        await queue.put(b"0")
        return queue


async def _ask(queue: Any, verbs: Collection[str]) -> dict[str, Any]:
    """Run all these verbs at a time, each with a deadline. Returns what came of them."""
    chosen = [verb for verb in VERBS if verb in verbs and "deadline" in VERBS[verb]]
    running = [call(queue, verb, deadline=_SOON, **_NEEDS.get(verb, {})) for verb in chosen]
    return dict(zip(chosen, await in_time(asyncio.gather(*running, return_exceptions=True)), strict=True))
