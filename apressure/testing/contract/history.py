"""The part of the contract that is about the history of a queue."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from apressure.core.history import KEPT, Minute
from apressure.testing.contract.steps import Opener, fails, in_time

NOW = 1_700_000_040


def minute(number: int, length: int = 1) -> Minute:
    """Return the record of a minute."""
    return Minute(NOW + 60 * number, length, 2, 3, 4, None, 5)


class HistoryContract:
    """Whoever watches writes the minutes of a queue, each once, and a day of them is kept."""

    async def test_each_minute_is_written_once_and_in_order(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        assert await queue.history() == []
        written = [await queue.write_history(minute(number)) for number in (0, 1, 1, 0, 3)]
        assert written == [True, True, False, False, True]
        assert await queue.history() == [minute(0), minute(1), minute(3)]
        refused = await fails(TypeError, queue.write_history((1, 2, 3)))
        assert str(refused) == "minute must be a Minute, not tuple"

    async def test_a_day_is_kept(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        for number in range(KEPT + 5):
            assert await in_time(queue.write_history(minute(number)))
        found = await queue.history()
        assert (len(found), found[0], found[-1]) == (KEPT, minute(5), minute(KEPT + 4))

    async def test_a_pause_tells_since_when_or_that_it_does_not_know(self, open_queue: Opener) -> None:
        queue = await open_queue()
        await queue.create()
        before = time.time()
        assert await queue.pause()
        paused = await queue.statistics()
        assert paused.paused
        if paused.paused_since is not None:
            assert paused.paused_since.tzinfo is UTC
            assert before - 1 <= paused.paused_since.timestamp() <= datetime.now(UTC).timestamp() + 1
        await queue.resume()
        assert (await queue.statistics()).paused_since is None
