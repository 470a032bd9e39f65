"""The queues of a stream on real servers, without Spark: looked at, sealed and committed together."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import redis

from apressure import QueueDoesNotExistError
from apressure.connection.wire.blocking import Blocking
from apressure.connection.wire.script import Call
from apressure.embedded import EmbeddedServer
from apressure.exceptions import ServerError
from apressure.spark.engine.source_steps import SourceSteps
from apressure.spark.engine.steps import GroupTakenError, find_queues, server_of
from apressure.spark.options import Options
from apressure.spark.source.queues import Offset, Queues
from tests.integration.spark.support import GROUP, connect
from tests.servers import SERVERS, refresh
from tests.topologies import Nodes, cluster

pytest.importorskip("redis", "5.3", reason="Spark needs redis-py 5.3")
pytestmark = pytest.mark.leaves_keys


class Killed(BaseException):
    """Ends a process in the middle of a step."""


class Place:
    """Queues, and the batches of their group."""

    def __init__(self, url: str, names: Sequence[str], **options: str) -> None:
        self.options = Options.of({"url": url, "queues": ",".join(names), "group": GROUP, "pollWait": "0.1", **options})
        self.server = server_of(self.options)
        self.steps = {name: SourceSteps(self.server, name, GROUP) for name in names}
        self.put: dict[str, list[bytes]] = {name: [] for name in names}
        for steps in self.steps.values():
            steps.create(0)

    def fill(self, name: str, count: int, size: int = 0) -> None:
        more = [b"%s %d" % (name.encode(), number) + b"." * size for number in range(count)]
        self.put[name] += more
        if more:
            self.server.ask(b"LPUSH", self.steps[name].keys.queue.messages, *more)

    def begin(self) -> Queues:
        """A process that reads for the group."""
        return Queues(self.options, GROUP)

    def read(self, queues: Queues, start: Offset, end: Offset) -> dict[str, list[bytes]]:
        """The messages of the batches between two offsets, by queue; checks that they are counted right."""
        found: dict[str, list[bytes]] = {}
        for queue, number, row, rows in queues.batches(start, end):
            name = queue.steps.name
            batch: list[bytes] = self.server.ask(b"LRANGE", queue.steps.batch(number), 0, -1)[::-1]
            assert len(batch) == rows
            assert row >= 0
            found.setdefault(name, []).extend(batch)
        return found


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with cluster("valkey", nodes=3) as nodes:
        yield nodes


@pytest.fixture(params=[*SERVERS, "cluster"])
def address(request: pytest.FixtureRequest) -> str:
    """A server of each kind, and a cluster."""
    if request.param == "cluster":
        return str(request.getfixturevalue("nodes").url)
    server: EmbeddedServer = request.getfixturevalue(request.param)
    refresh(server)
    return server.url


def seal(queues: Queues, start: Offset, limit: int, limit_bytes: int = 0) -> Offset:
    opened = queues.open(start)
    end, busy = queues.seal(opened, start, dict.fromkeys(opened, limit), limit_bytes)
    assert busy is None
    return {**start, **end}


def test_a_process_that_dies_while_it_seals_many_queues_loses_and_doubles_nothing(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies after any number of scripts, with some batches sealed, some incomplete; the next one goes on."""
    rng = random.Random(7)
    names = [f"{{many:{number}}}" for number in range(7)]
    place = Place(address, names)
    for name in names:
        place.fill(name, rng.choice([0, 1, 600, 1300]), 100)
    run_all = Blocking.run_all
    found: dict[str, list[bytes]] = {name: [] for name in names}
    start: Offset = {}
    for turn in range(12):
        calls = rng.randint(0, 12)

        def dying(self: Blocking, some: Sequence[tuple[Call, Sequence[Any]]]) -> list[Any]:
            nonlocal calls
            run_all(self, some[: max(0, calls)])
            calls -= len(some)
            if calls < 0:
                raise Killed
            return run_all(self, some)  # and all of these steps were made twice

        if turn % 3 < 2:
            with monkeypatch.context() as patched, pytest.raises(Killed):
                patched.setattr(Blocking, "run_all", dying)
                dead = place.begin()
                for _ in range(20):
                    seal(dead, start, 900, 80_000)
        else:
            alive = place.begin()
            end = seal(alive, start, 900, 80_000)
            for name, rows in place.read(alive, start, end).items():
                found[name] += rows
            for _ in range(2):
                alive.commit(alive.opened(end), end)
            start = end
            place.fill(rng.choice(names), 300, 100)
    last = place.begin()
    while (end := seal(last, start, 900)) != start:
        for name, rows in place.read(last, start, end).items():
            found[name] += rows
        last.commit(last.opened(end), end)
        start = end
    assert found == place.put
    assert not any(any(place.steps[name].lengths(1, start.get(name, 0) + 1)) for name in names)


def test_sixty_queues_take_few_commands(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"{{sixty}}:{number}" for number in range(60)]
    place = Place(address, names)
    trips = 0
    repeatedly = Blocking._repeatedly

    def counted(self: Blocking, send: Callable[[Any], Any]) -> Any:
        nonlocal trips
        trips += 1
        return repeatedly(self, send)

    queues = place.begin()
    start: Offset = {name: queue.committed for name, queue in queues.open({}).items()}
    assert seal(queues, start, 10) == start
    for name in names[:40]:
        place.fill(name, 30)
    monkeypatch.setattr(Blocking, "_repeatedly", counted)
    assert queues.lengths(queues.open(start)) == {name: 30 * (name in names[:40]) for name in names}
    assert trips == 2
    assert queues.backlogs() == (
        {name: {"messages": 0, "bytes": 0} for name in names[40:]} | {name: {"messages": 30} for name in names[:40]},
        2,
    )
    trips = 0
    end = seal(queues, start, 10)
    assert len(queues.batches(start, end)) == 40
    queues.commit(queues.opened(end), end)
    assert trips == 3
    for name in names:
        place.server.ask(b"DEL", place.steps[name].keys.queue.messages)
    trips = 0
    opened = queues.open(end)
    assert not queues.await_message(opened)
    assert not any(queues.lengths(opened).values())
    assert queues.in_turn(opened) != queues.in_turn(opened) == set()
    assert trips <= 4  # each is one command for all queues
    place.steps[names[7]].close()
    assert not queues.all_closed(opened)


def test_queues_of_many_slots_are_one_stream(address: str) -> None:
    names = [f"{{slot{number}}}" for number in range(12)]
    place = Place(address, names)
    queues = place.begin()
    opened = queues.open({})
    assert not queues.await_message(opened)
    place.fill(names[5], 3)
    assert queues.lengths(opened) == {name: 3 * (name == names[5]) for name in names}
    for steps in place.steps.values():
        steps.close()
    assert queues.all_closed(opened)
    assert place.read(queues, {}, seal(queues, {}, 0)) == {names[5]: place.put[names[5]]}


def test_a_queue_that_was_deleted(url: str) -> None:
    place = Place(url, ["gone-a", "gone-b"])
    place.fill("gone-b", 3)
    by_name = place.begin()
    by_name.open({})
    pattern = Queues(Options.of({"url": url, "queues": "gone-*", "group": "other"}), "other")
    pattern.open({})
    place.server.ask(b"DEL", place.steps["gone-a"].keys.queue.bound)
    with pytest.raises(QueueDoesNotExistError, match="the queue 'gone-a' does not exist"):
        seal(by_name, {}, 10)
    # The batch of the other queue is there, and the next process uses it. A pattern does without the queue.
    assert seal(pattern, {}, 10) == {}
    assert pattern.names() == ("gone-b",)
    place.server.ask(b"SET", place.steps["gone-a"].keys.queue.bound, 0)
    again = place.begin()
    with pytest.raises(GroupTakenError, match="another query reads"):
        again.open({})
        seal(by_name, {}, 10)
    assert place.read(again, {}, seal(again, {}, 10)) == {"gone-b": place.put["gone-b"]}


def test_scripts_that_the_server_does_not_know_and_a_command_that_it_refuses(url: str) -> None:
    server = connect(url)
    steps = [SourceSteps(server, f"jobs{number}", GROUP) for number in range(5)]
    for step in steps:
        step.create(0)
    with redis.Redis.from_url(url) as plain:
        plain.script_flush()
    calls = [(step.call, step.arguments) for one in steps for step in (one.to_measure(), one.to_begin_epoch(None))]
    answers = server.run_all(calls)
    assert [answer[0] for answer in answers] == [b"ok"] * 10
    assert answers[0][1:] == [0, 0, 0]
    server.ask(b"SET", steps[2].keys.queue.messages, "a string")
    with pytest.raises(ServerError, match="WRONGTYPE"):
        server.run_all(calls)
    with pytest.raises(ServerError, match="WRONGTYPE"):
        server.ask_all([(b"LLEN", one.keys.queue.messages) for one in steps])
    assert server.run_all([]) == server.ask_all([]) == []
    server.close()


def test_a_pattern_goes_on_without_a_queue_that_is_deleted_after_the_search(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(url, ["gone-a", "gone-b"])
    place.fill("gone-b", 3)
    options = Options.of({"url": url, "queues": "gone-*"})
    queues = Queues(options, GROUP)
    assert queues.names() == ("gone-a", "gone-b")
    place.server.ask(b"DEL", place.steps["gone-a"].keys.queue.bound)
    queues.limit_to_present()
    assert place.read(queues, {}, seal(queues, {}, 10)) == {"gone-b": place.put["gone-b"]}

    pytest.importorskip("pyspark")
    from apressure.spark.columns import RAW
    from apressure.spark.source import slices

    place.fill("gone-b", 3)
    monkeypatch.setattr(slices, "find_queues", lambda *_: ["gone-a", "gone-b"])
    (task,) = slices.QueueReader(options, RAW).partitions()
    assert [(piece.queue, piece.rows) for piece in task.slices] == [("gone-b", 3)]


def test_a_pattern_leaves_out_dead_letters_of_what_it_finds_and_names_that_are_no_text(url: str) -> None:
    """A stream that reads its own dead letters would make dead letters of them, and so on."""
    place = Place(url, ["jobs", "jobs:dead", "jobs:dead:dead", "jobs:deadline"])
    place.server.ask(b"SET", b"__pressure__:jobs\xff:bound", 0)
    assert find_queues(place.server, "jobs*") == ["jobs", "jobs:deadline"]
    assert find_queues(place.server, "*:dead") == ["jobs:dead"]


def test_a_batch_from_before_a_crash_is_read_though_its_queue_is_not_read_any_more(url: str) -> None:
    place = Place(url, ["left-a", "left-b", "left-c"])
    for name in place.steps:
        place.fill(name, 3)
    dead = place.begin()
    start: Offset = {name: queue.committed for name, queue in dead.open({}).items()}
    assert len(seal(dead, start, 2)) == 3
    place.server.ask(b"DEL", place.steps["left-a"].keys.queue.bound)
    alive = Queues(Options.of({"url": url, "queues": "left-b", "create": "true", "group": GROUP}), GROUP)
    assert alive.batches(start, start) == []
    end = seal(alive, start, 2)
    assert place.read(alive, start, end) == {name: rows[:2] for name, rows in place.put.items()}
    assert seal(alive, end, 2) == {**end, "left-b": 2}  # and no more of the others
    assert not place.steps["left-a"].exists()
    again = Queues(Options.of({"url": url, "queues": "left-b", "group": GROUP}), GROUP)
    assert seal(again, {**end, "left-b": 2}, 2) == {**end, "left-b": 2}


@pytest.mark.parametrize("most", ["0", "3"])
def test_rows_that_were_left_out_become_dead_letters_with_another_limit_too(url: str, most: str) -> None:
    """A query went on without a row, died before the commit, and is started again with another `maxAttempts`."""
    place = Place(url, ["jobs"], maxAttempts="1")
    place.fill("jobs", 5)
    dead = place.begin()
    start: Offset = {name: queue.committed for name, queue in dead.open({}).items()}
    end = seal(dead, start, 10)
    assert place.steps["jobs"].note_failures(1, 0, 5, [2]) == 1
    alive = Queues(Options.of({"url": url, "queue": "jobs", "maxAttempts": most}), GROUP)
    alive.commit(alive.open(end), end)
    assert place.server.ask(b"LRANGE", b"__pressure__:jobs:dead", 0, -1) == [place.put["jobs"][2]]


def test_rows_that_are_not_left_out_any_more_are_no_dead_letters(url: str) -> None:
    """Without `maxAttempts` the same batch is read again, with a column for what cannot be decoded."""
    place = Place(url, ["jobs"], maxAttempts="1")
    place.fill("jobs", 5)
    dead = place.begin()
    start: Offset = {name: queue.committed for name, queue in dead.open({}).items()}
    end = seal(dead, start, 10)
    assert place.steps["jobs"].note_failures(1, 0, 5, [2]) == 1
    alive = Queues(Options.of({"url": url, "queue": "jobs"}), GROUP)
    assert len(place.read(alive, start, end)["jobs"]) == 5
    alive.commit(alive.open(end), end)
    assert not place.server.ask(b"EXISTS", b"__pressure__:jobs:dead")
