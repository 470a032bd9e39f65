"""The promises that every kind of queue keeps, as tests.

To test a queue of your own, subclass `QueueContract` in a test module, and write a fixture `open_queue` that opens
queue objects. pytest runs the tests with pytest-asyncio in its auto mode.

    class TestMyQueue(QueueContract):
        @pytest.fixture
        async def open_queue(self, tmp_path):
            async with contextlib.AsyncExitStack() as stack:

                async def open_queue(**options):
                    return await stack.enter_async_context(MyQueue(tmp_path / "queue", **options))

                yield open_queue

Each call of `open_queue` opens another object of the same queue, which does not exist at first. `options` may be
`max_attempts` and, for `VerbContract` and `BrowseContract`, `codec`. Items are bytes.

If the dead letters of your queue tell why, subclass `DeadLetterContract` as well; if it can be paused, `PauseContract`;
if it can limit its consumers, `LimitContract`; if it knows keys, `KeyContract`; if it refuses repeats, `DedupContract`
or `DedupUntilDoneContract`; if it takes requests (`ask`), `RequestContract`; if its rate counts what programs have
spent, `SpendContract`, and `CostContract` if its messages have costs; if those that work on it register there,
`WorkersContract`, and `BackpressureContract` if producers that wait for room do.

If it has every verb of `VERBS`, as the kinds of queue of apressure have, subclass `WholeContract`: it is these three,
and `AddedLetterContract`, `MovedLetterContract`, `DelayContract`, `ExpiryContract`, `ScheduleContract`,
`HistoryContract`, `VerbContract`, `BoundContract` (the bound changes), `BrowseContract` (which shows what is in the
queue, page by page), `ArgumentContract`, `DeadlineContract`, `CancellationContract` (at every await) and `EndContract`
(the queue is closed, or deleted, at every await of another operation). With a fixture `frozen` that returns a block in
which your server answers nothing, `FrozenContract` tests that `deadline=` holds then.
"""

from apressure.testing.contract.arguments import ArgumentContract
from apressure.testing.contract.backpressure import BackpressureContract
from apressure.testing.contract.bounds import BoundContract
from apressure.testing.contract.browsing import BrowseContract
from apressure.testing.contract.cancellation import CancellationContract
from apressure.testing.contract.costs import CostContract, SpendContract
from apressure.testing.contract.dead_letters import AddedLetterContract, DeadLetterContract, MovedLetterContract
from apressure.testing.contract.deadlines import DeadlineContract
from apressure.testing.contract.dedup import DedupContract, DedupUntilDoneContract
from apressure.testing.contract.delays import DelayContract
from apressure.testing.contract.each_verb import VerbContract
from apressure.testing.contract.ends import EndContract
from apressure.testing.contract.expiry import ExpiryContract
from apressure.testing.contract.frozen import FrozenContract
from apressure.testing.contract.history import HistoryContract
from apressure.testing.contract.keys import KeyContract
from apressure.testing.contract.limits import LimitContract
from apressure.testing.contract.pauses import PauseContract
from apressure.testing.contract.queues import QueueContract
from apressure.testing.contract.requests import RequestContract
from apressure.testing.contract.schedules import ScheduleContract
from apressure.testing.contract.steps import ITEMS, PATIENCE, Opener, begun, drained, fails, in_time
from apressure.testing.contract.verbs import VERBS
from apressure.testing.contract.workers import WorkersContract

__all__ = [
    "ITEMS", "PATIENCE", "VERBS", "AddedLetterContract", "ArgumentContract", "BackpressureContract", "BoundContract",
    "BrowseContract", "CancellationContract",
    "CostContract", "DeadLetterContract", "DeadlineContract", "DedupContract", "DedupUntilDoneContract",
    "DelayContract", "EndContract", "ExpiryContract", "FrozenContract", "HistoryContract", "KeyContract",
    "LimitContract", "MovedLetterContract", "Opener", "PauseContract", "QueueContract", "RequestContract",
    "ScheduleContract", "SpendContract", "VerbContract", "WholeContract", "WorkersContract", "begun", "drained",
    "fails", "in_time",
]  # fmt: skip


class WholeContract(
    QueueContract, DeadLetterContract, AddedLetterContract, MovedLetterContract, PauseContract, DelayContract,
    ExpiryContract, ScheduleContract, HistoryContract, VerbContract, BoundContract, BrowseContract, ArgumentContract,
    DeadlineContract, CancellationContract, EndContract,
):  # fmt: skip
    """The tests that every kind of queue of apressure passes."""
