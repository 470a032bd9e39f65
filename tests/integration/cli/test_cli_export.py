"""`apressure export` and `apressure import`: what is in a queue of any kind, as a file, and back."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import shlex
import signal
import subprocess
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import redis

from apressure import DeadLetter
from apressure.cli.commands.export import Writer
from apressure.cli.streams.meter import Meter
from apressure.cli.streams.pipes import Output
from apressure.concurrency.loop_thread import LoopThread
from apressure.dead_letters import Failure
from tests.integration.commands import Commands, ended, feed, wait_until, with_queue
from tests.integration.events.remote.conftest import serving

T = TypeVar("T")

pytestmark = [pytest.mark.leaves_keys, pytest.mark.parametrize("server", ["valkey"], indirect=True)]

KINDS = ("queue", "events", "tasks", "files")
KEYED = ("events", "tasks")
LETTERS = [
    DeadLetter("d1", b"dead", 5, Failure("ValueError", "bad", 4), 1700000000.25, bytes),
    DeadLetter("d2", b"dead too", 1, Failure("", "a text", 1), 1700000001.5, bytes),
]


class Shop(Commands):
    """Queues on a server and in a directory."""

    def __init__(self, url: str, directory: Path) -> None:
        super().__init__(url)
        self._directory = directory

    def address(self, kind: str, name: str = "orders") -> str:
        return f"files:{self._directory}/{name}" if kind == "files" else f"{kind}:{name}"

    def of(self, address: str, use: Callable[[Any], Awaitable[T]], **options: Any) -> T:
        return with_queue(self.url, address, use, **options)

    def json_of(self, *arguments: str, input: bytes) -> Any:
        return json.loads(self(*arguments, "--json", input=input).stdout)

    def fill_new(self, name: str, items: list[bytes]) -> None:
        self.create(name)
        self.fill(name, *items)

    def exported(self, address: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self("export", address).stdout.splitlines()]


@pytest.fixture
def shop(url: str, tmp_path: Path) -> Iterator[Shop]:
    yield Shop(url, tmp_path)
    with redis.Redis.from_url(url) as db:
        db.flushall()


async def fill(queue: Any, kind: str) -> None:
    """Have something of everything in a queue."""
    await queue.create(bound=20)
    await queue.put_many([b"first", b"\xc3\xbc \n", b"second"])
    if kind != "tasks":  # parameters of tasks are text
        await queue.put(b"\xff\x00")
    if kind == "events":
        await queue.put(b"later", delay=3600)
        await queue.put(b"later too", delay=3601)
    else:
        await queue.put_many([b"later", b"later too"], delay=3600)
    await queue.put(b"last", delay=7200)
    if kind in KEYED:
        await queue.put_many([b"k1", b"k2"], key="customer-7")
    if kind != "files":
        await queue.set_rate(100, 60.0, 7)
        await queue.set_concurrency(5)
    await queue.every("report", "0 9 * * *", b"report", timezone="Europe/Berlin", missed="none")
    await queue.every("beat", 60.0, b"beat")
    await queue.pause_schedule("beat")
    await queue.add_dead_letters(LETTERS)
    await queue.pause()


def essence(lines: list[dict[str, Any]], keys: bool = True, limits: bool = True) -> list[dict[str, Any]]:
    """What must be the same in two exports: not where and when they were made, and what ids are called."""
    left_out = {"queue", "kind", "at", "id", "attempts"}
    left_out |= set() if keys else {"key", "key_limit"}
    left_out |= set() if limits else {"rate", "concurrency"}

    def shown(line: dict[str, Any]) -> dict[str, Any]:
        kept = {"attempts"} if line.get("place") == "dead" else set()
        return {name: value for name, value in line.items() if name not in left_out - kept}

    return [shown(line) for line in lines]


class TestContract:
    @pytest.mark.parametrize("there", KINDS)
    @pytest.mark.parametrize("here", KINDS)
    def test_an_export_that_was_imported_is_the_same_again(self, shop: Shop, here: str, there: str) -> None:
        source, target = shop.address(here), shop.address(there, "new")
        shop.of(source, lambda queue: fill(queue, here))
        before = shop("export", source).stdout
        if here != "tasks" and there == "tasks":
            before = b"".join(line for line in before.splitlines(keepends=True) if b"base64" not in line)
        messages = before.count(b"place") - len(LETTERS)
        shown = shop.json_of("import", target, "--drop", input=before)
        assert (shown["imported"], shown["dead_letters"], shown["schedules"]) == (messages, 2, 2)
        keeps = {"keys": there in KEYED or here not in KEYED, "limits": there != "files"}
        assert keeps["keys"] != bool(shown["dropped"].get("keys"))
        after = shop.exported(target)
        read = [json.loads(line) for line in before.splitlines()]
        assert essence(after[:-1], **keeps) == essence(read[:-1], **keeps)
        if here == there == "events":
            waiting = [[line["id"] for line in lines if line.get("place") == "waiting"] for lines in (after, read)]
            assert waiting[0] == waiting[1]

    @pytest.mark.parametrize("kind", KINDS)
    def test_an_export_takes_nothing(self, shop: Shop, kind: str) -> None:
        address = shop.address(kind)
        shop.of(address, lambda queue: fill(queue, kind))
        before = shop.exported(address)
        again = shop.exported(address)
        assert [line.pop("at") != "" for line in (before[0], again[0])] == [True, True]
        assert again == before
        length = shop.of(address, lambda queue: queue.qsize())
        assert length == sum(line.get("place") in ("waiting", "parked") for line in before)

    @pytest.mark.parametrize("kind", KINDS)
    def test_what_is_in_flight_is_in_the_file_and_stays_in_flight(self, shop: Shop, kind: str) -> None:
        address = shop.address(kind)

        async def receive_and_export(queue: Any) -> tuple[bytes, bytes]:
            await queue.create()
            await queue.put_many([b"1", b"2", b"3"])
            delivery = await queue.receive(timeout=10)
            with shop.running("export", address) as process:
                _, output, errors = await asyncio.to_thread(ended, process)
            await delivery.ack()
            assert await queue.qsize() == 2
            return output, errors

        output, errors = shop.of(address, receive_and_export)
        lines = [json.loads(line) for line in output.splitlines()]
        assert [(line["place"], line["text"]) for line in lines[1:-1]] == [
            ("in_flight", "1"), ("waiting", "2"), ("waiting", "3"),
        ]  # fmt: skip
        assert lines[-1]["end"]["in_flight"] == 1
        assert errors.startswith(b"apressure: 1 of the messages are in flight: ")
        assert errors.count(b"\n") == 1  # it did not change

    @pytest.mark.parametrize("kind", KINDS)
    def test_dead_letters_are_read_in_pages(self, shop: Shop, kind: str) -> None:
        address = shop.address(kind)
        letters = [dataclasses.replace(LETTERS[0], id=f"d{n}", raw=b"%d" % n) for n in range(2500)]

        async def bury(queue: Any) -> None:
            await queue.create()
            await queue.add_dead_letters(letters)

        shop.of(address, bury)
        result = shop("export", address)
        lines = [json.loads(line) for line in result.stdout.splitlines()]
        assert [line["text"] for line in lines[1:-1]] == [str(n) for n in range(2500)]
        assert (lines[-1]["end"]["dead"], result.stderr) == (2500, b"")

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_paused_queue_with_more_than_its_bound_comes_back(self, shop: Shop, kind: str) -> None:
        async def overfill(queue: Any) -> None:
            await queue.create(bound=2)
            await queue.put_many([b"1", b"2"])
            deliveries = await queue.receive_many(2, timeout=10)
            if kind != "files":  # there, what is in flight counts
                await queue.put_many([b"3", b"4"], timeout=10)
            await queue.pause()
            for delivery in deliveries:
                await delivery.nack()

        async def settings(queue: Any) -> tuple[int, int, bool]:
            found = await queue.statistics()
            return found.length, found.bound, found.paused

        source, target = shop.address(kind), shop.address(kind, "new")
        shop.of(source, overfill)
        file = shop("export", source).stdout
        shop("import", target, "--timeout", "0", input=file, warned=paused(target))
        assert shop.of(target, settings) == shop.of(source, settings) == (2 if kind == "files" else 4, 2, True)

    def test_settings_come_back_after_an_interruption(self, shop: Shop) -> None:
        async def settings(queue: Any) -> tuple[int, bool]:
            return await queue.bound(), (await queue.statistics()).paused

        head, *rest = file_of("1", "2", "3", bound=2).splitlines(keepends=True)
        head = head.replace(b'"paused": false', b'"paused": true')
        shop("import", "orders", input=head + rest[0], code=1)
        assert shop.of("orders", settings) == (0, True)
        shop("import", "orders", "--skip", "2", input=b"".join([head, *rest]), warned=paused("orders"))
        assert shop.of("orders", settings) == (2, True)
        shop("create", "bounded", "--bound", "5")
        shop("import", "bounded", input=b"".join([head, *rest]), warned=paused("bounded"))
        assert shop.of("bounded", settings) == (5, True)
        shop("create", "small", "--bound", "1")
        shop("import", "small", "--timeout", "0", input=b"".join([head, *rest]), code=6)
        assert shop.of("small", settings) == (1, False)  # those who make room may still take

    def test_a_closed_queue_is_closed_again(self, shop: Shop) -> None:
        async def fill_and_close(queue: Any) -> None:
            await queue.create()
            await queue.put(b"1")
            await queue.close()

        shop.of("orders", fill_and_close)
        shop("import", "events:new", input=shop("export", "orders").stdout)
        assert shop.of("events:new", lambda queue: queue.closed())
        assert shop("get", "events:new").stdout == b"1\n"

    def test_tasks_keep_their_parameters(self, shop: Shop) -> None:
        shop("put", "tasks:orders", "--parse", '{"a": 1}')
        shop("put", "tasks:orders", "plain", '"quoted"', "5")
        file = shop("export", "tasks:orders").stdout
        shop("import", "tasks:new", input=file)
        parameters = [line["text"] for line in shop.exported("tasks:orders")[1:-1]]
        assert [line["text"] for line in shop.exported("tasks:new")[1:-1]] == parameters
        shop("import", "new", input=file)
        assert shop("get", "new", "-n", "4").stdout.splitlines() == [b'{"a":1}', b"plain", b'"quoted"', b"5"]

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_second_import_adds_and_says_how_many_messages_there_were(self, shop: Shop, kind: str) -> None:
        target, file = shop.address(kind, "new"), file_of("1", "2")
        assert b"before" not in shop("import", target, input=file).stdout
        assert shop("import", target, input=file).stdout.endswith(b"new, which had 2 messages before\n")
        assert shop.json_of("import", target, input=file)["before"] == 4
        shop.json_of("import", target, "--skip", "2", input=file)
        assert shop.of(target, lambda queue: queue.qsize()) == 7

    def test_a_missing_queue_is_an_error(self, shop: Shop) -> None:
        assert b"does not exist" in shop("export", "orders", code=3).stderr
        assert shop("export", "orders", code=3).stdout == b""


def paused(address: str) -> str:
    """What an import says of a queue that is paused."""
    shown = address.removeprefix("queue:")
    return f"apressure: {shown} is paused, as the exported queue was: `apressure resume {shown}`\n"


def file_of(*items: str, bound: int = 0) -> bytes:
    """An export with these items."""
    lines = [
        {"apressure": 1, "kind": "queue", "bound": bound, "closed": False, "paused": False},
        *({"place": "waiting", "text": item} for item in items),
        {"end": {}},
    ]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


class TestTrouble:
    @pytest.mark.parametrize("damage", [b"{", b"{}", b"", b'{"place": "waiting"}', b'{"apressure": 1}'])
    def test_a_damaged_line_is_named_and_all_before_it_are_done(self, shop: Shop, damage: bytes) -> None:
        lines = file_of("1", "2", "3", "4").splitlines(keepends=True)
        broken = b"".join([*lines[:3], damage + b"\n", *lines[4:]])
        error = shop("import", "orders", input=broken, code=1).stderr.decode()
        assert error.startswith("apressure: line 4 is damaged: ")
        assert error.endswith("; 3 lines are done: go on with --skip 3\n")
        assert shop.of("orders", lambda queue: queue.qsize()) == 2
        shop("import", "orders", "--skip", "3", input=b"".join(lines))
        assert shop.empty("orders") == [b"1", b"2", b"3", b"4"]

    def test_what_is_no_export_changes_nothing(self, shop: Shop) -> None:
        for wrong in (b"a line\n", b"", b'{"place": "waiting", "text": "1"}\n'):
            shop("import", "orders", input=wrong, code=1)
        later = shop("import", "orders", input=b'{"apressure": 2, "new": "things"}\n', code=1).stderr
        assert b"version 2" in later
        assert not shop.of("orders", lambda queue: queue.exists())

    def test_a_file_that_was_cut_short_is_noticed(self, shop: Shop) -> None:
        whole = file_of("1", "2", "3")
        for cut in (whole[: whole.rindex(b'{"end')], whole[: whole.rindex(b'{"place') + 20]):
            error = shop("import", "orders", input=cut, code=1).stderr
            assert b"cut short" in error or b"is damaged" in error
        assert shop.empty("orders") == [b"1", b"2", b"3", b"1", b"2"]

    def test_a_full_queue_says_where_to_go_on(self, shop: Shop) -> None:
        file = file_of("1", "2", "3", "4", "5")
        error = shop("import", "orders", "--bound", "2", "--timeout", "0.1", input=file, code=6).stderr
        assert b"is full" in error
        assert error.endswith(b"; 3 lines are done: go on with --skip 3\n")
        told = json.loads(
            shop("import", "orders", "--timeout", "0", "--skip", "3", "--json", input=file, code=6).stderr
        )
        assert told["lines"] == 3
        assert shop.empty("orders") == [b"1", b"2"]
        shop("import", "orders", "--skip", "3", "--timeout", "0.1", input=file, code=6)
        assert shop.empty("orders") == [b"3", b"4"]
        shop("import", "orders", "--skip", "5", input=file)
        assert shop.empty("orders") == [b"5"]

    def test_an_interrupted_import_says_where_to_go_on(self, shop: Shop) -> None:
        file = file_of(*map(str, range(2000)))
        with shop.running("import", "orders", "--bound", "1500", stdin=subprocess.PIPE) as process:
            feed(process, file)
            wait_until(lambda: shop.of("orders", lambda queue: queue.exists()))
            wait_until(lambda: shop.stat("orders").length == 1500)
            process.send_signal(signal.SIGINT)
            code, _, errors = ended(process)
        assert code == 130
        done = int(re.findall(rb"go on with --skip (\d+)\n$", errors)[0])
        assert done == 1501
        first = shop.empty("orders")
        assert first == [b"%d" % number for number in range(1500)]
        shop("import", "orders", "--skip", str(done), input=file)
        assert shop.empty("orders") == [b"%d" % number for number in range(1500, 2000)]

    def test_a_bound_of_the_users_is_that_of_a_new_queue(self, shop: Shop) -> None:
        shop("import", "orders", "--bound", "7", input=file_of("1", "2", "3", bound=2))
        assert shop.of("orders", lambda queue: queue.bound()) == 7

    @pytest.mark.parametrize("bound", [-1, 10**16])
    def test_a_wrong_bound_is_damage_of_the_first_line(self, shop: Shop, bound: int) -> None:
        error = shop("import", "orders", input=file_of("1", bound=bound), code=1).stderr
        assert error.startswith(b"apressure: line 1 is damaged: ")

    @pytest.mark.parametrize("wrong", [{"id": "\ud800"}, {"id": "i" * 2000}, {"key": "\ud800"}])
    def test_what_the_queue_refuses_is_named_with_its_line(self, shop: Shop, wrong: dict[str, str]) -> None:
        lines = file_of("1", "2", "3").replace(b'"queue"', b'"events"').splitlines(keepends=True)
        lines[2] = json.dumps({"place": "waiting", "text": "2", **wrong}).encode() + b"\n"
        error = shop("import", "events:orders", input=b"".join(lines), code=1).stderr
        assert error.startswith(b"apressure: line 3 is damaged: ")
        assert error.endswith(b"; 2 lines are done: go on with --skip 2\n")
        assert shop.of("events:orders", lambda queue: queue.qsize()) == 1

    def test_what_a_kind_cannot_keep_is_refused_with_its_line(self, shop: Shop) -> None:
        async def fill_keyed(queue: Any) -> None:
            await queue.put(b"0")
            await queue.put(b"1", key="a")

        shop.of("events:orders", fill_keyed)
        shop("limit", "events:orders", "--key", "/a")
        file = shop("export", "events:orders").stdout
        error = shop("import", "orders", input=file, code=2).stderr.decode()
        assert error.startswith("apressure: line 1: ")
        assert "--drop" in error
        assert not shop.of("orders", lambda queue: queue.exists())  # so that the next one sets the bound
        shown = shop.json_of("import", "orders", "--drop", input=file)
        assert shown["dropped"] == {"key limit": 1, "keys": 1}
        assert shop.empty("orders") == [b"0", b"1"]

    def test_an_item_that_is_no_text_is_named_or_left_out_for_tasks(self, shop: Shop) -> None:
        shop("create", "orders")
        shop.of("orders", lambda queue: queue.put_many([b"1", b"2", b"\xff", b"4", b"\xfe"]))
        file = shop("export", "orders").stdout
        error = shop("import", "tasks:orders", input=file, code=2).stderr
        assert error.startswith(b"apressure: line 4: an item is not UTF-8")
        assert error.endswith(b"--drop leaves out what this queue cannot keep; 3 lines are done: go on with --skip 3\n")
        assert shop.of("tasks:orders", lambda queue: queue.qsize()) == 2
        shown = shop.json_of("import", "tasks:orders", "--drop", "--skip", "3", input=file)
        assert (shown["imported"], shown["dropped"]) == (1, {"items that are not text": 2})

    def test_what_skip_leaves_out_is_done(self, shop: Shop) -> None:
        file = file_of("1", "2", "3")
        error = shop("import", "orders", "--skip", "3", input=file[:20], code=1).stderr
        assert error.endswith(b"; 3 lines are done: go on with --skip 3\n")
        assert (
            b"has 5 lines, and --skip leaves out more"
            in shop("import", "orders", "--skip", "300", input=file, code=1).stderr
        )
        assert shop.of("orders", lambda queue: queue.qsize()) == 0

    def test_an_okq_server_takes_messages_and_no_dead_letters(self, shop: Shop) -> None:
        async def fill_dead(queue: Any) -> None:
            await queue.put_many([b"1", b"2"])
            await queue.add_dead_letters(LETTERS)

        shop.of("events:orders", fill_dead)
        file = shop("export", "events:orders").stdout
        with LoopThread() as loop:
            server = serving(shop.url)
            address = f"{loop.call(server.__aenter__)}/new"
            try:
                assert b"no dead letters" in shop("import", address, input=file, code=2).stderr
                shown = shop.json_of("import", address, "--drop", "--skip", "3", input=file)
                assert b"browse" in shop("export", address, code=1).stderr
            finally:
                loop.call(lambda: server.__aexit__(None, None, None))
        assert (shown["imported"], shown["dropped"]) == (0, {"dead letters": 2})
        assert [line["text"] for line in shop.exported("events:new")[1:-1]] == ["1", "2"]

    def test_an_event_that_is_there_already_is_a_repeat(self, shop: Shop) -> None:
        shop("put", "events:orders", "1", "2")
        file = shop("export", "events:orders").stdout
        shop("import", "events:new", input=file)
        error = shop("import", "events:new", input=file, code=4).stderr
        assert error.endswith(b"; 1 lines are done: go on with --skip 1\n")
        assert shop.of("events:new", lambda queue: queue.qsize()) == 2


class Kept(Output):
    """Keeps the lines in memory."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    async def write(self, data: bytes) -> None:
        self.lines.append(data)


class Between:
    """A queue with something that happens before each page of what waits, and behind it."""

    def __init__(self, queue: Any, before: Callable[[], Awaitable[Any]], behind: Callable[[], Awaitable[Any]]) -> None:
        self._queue = queue
        self._before = before
        self._behind = behind

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    async def browse(self, place: str, **options: Any) -> Any:
        if place != "waiting":
            return await self._queue.browse(place, **options)
        await self._before()
        page = await self._queue.browse(place, **options)
        await self._behind()
        return page


class TestAChangingQueue:
    """What moves while `export` reads page by page."""

    def exported_with(
        self, shop: Shop, kind: str, moves: Callable[[Any, list[Any]], Any], taken: int
    ) -> tuple[Counter[str], bool]:
        async def export(queue: Any) -> tuple[Counter[str], bool]:
            await queue.create()
            await queue.put_many([b"1", b"2"])
            deliveries = await queue.receive_many(2, timeout=10) if taken else []
            before, behind = moves(queue, deliveries)
            with Meter("export", shown=False) as meter:
                writer = Writer(Between(queue, before, behind), Kept(), meter, await queue.statistics())
                await writer.write_all()
            for delivery in deliveries:
                if not delivery.settled:
                    await delivery.ack()
            return writer.counts, writer.changed

        return shop.of(shop.address(kind), export)

    @pytest.mark.parametrize("given_back", [False, True])
    @pytest.mark.parametrize("kind", KINDS)
    def test_what_is_taken_before_its_page_is_missing_and_that_is_said(
        self, shop: Shop, kind: str, given_back: bool
    ) -> None:
        def moves(queue: Any, deliveries: list[Any]) -> Any:
            async def take() -> None:
                deliveries.extend(await queue.receive_many(2, timeout=10))

            async def give_back() -> None:
                for delivery in deliveries if given_back else ():
                    await delivery.nack()

            return take, give_back

        counts, changed = self.exported_with(shop, kind, moves, 0)
        assert (counts["in_flight"], counts["waiting"], changed) == (0, 0, True)

    @pytest.mark.parametrize("kind", KINDS)
    def test_what_is_given_back_is_written_once_where_it_has_an_id(self, shop: Shop, kind: str) -> None:
        def moves(queue: Any, deliveries: list[Any]) -> Any:
            async def give_back() -> None:
                for delivery in deliveries:
                    await delivery.nack()

            return give_back, nothing

        counts, changed = self.exported_with(shop, kind, moves, 2)
        assert (counts["in_flight"], counts["waiting"], changed) == (2, 2 if kind == "queue" else 0, True)

    @pytest.mark.parametrize("kind", KINDS)
    def test_dead_letters_are_never_in_memory_together(self, shop: Shop, kind: str) -> None:
        most = []

        class Measured(Between):
            async def find_dead_letters(self, **options: Any) -> Any:
                page = await self._queue.find_dead_letters(**options)
                most.append(len(page.letters))
                return page

            async def dead_letters(self, limit: int | None = None) -> Any:
                letters = await self._queue.dead_letters(limit)
                most.append(len(letters))
                return letters

        async def export(queue: Any) -> Counter[str]:
            await queue.create()
            await queue.add_dead_letters(dataclasses.replace(LETTERS[0], id=f"d{n}") for n in range(2500))
            with Meter("export", shown=False) as meter:
                measured = Measured(queue, nothing, nothing)
                writer = Writer(measured, Kept(), meter, await queue.statistics())
                await writer.write_all()
            return writer.counts

        assert shop.of(shop.address(kind), export)["dead"] == 2500
        assert max(most) <= 1000


async def nothing() -> None:
    pass


class TestByHand:
    def test_the_lines_of_the_page_show_what_is_in_a_queue(self, shop: Shop) -> None:
        page = (Path(__file__).parents[3] / "docs" / "rely" / "leave.md").read_text()
        commands = re.findall(r"^redis-cli (.*?)(?:\s+# .*)?$", page, re.MULTILINE)
        assert len(commands) == 11
        for kind in ("queue", "events", "tasks"):
            shop.of(shop.address(kind), fill_by_hand)
        with redis.Redis.from_url(shop.url) as db:

            def shown(command: str) -> bytes:
                return repr(db.execute_command(*shlex.split(command))).encode()

            answers = {command: shown(command) for command in commands if "ID" not in command}
            assert all(b"None" not in answer and answer != b"[]" for answer in answers.values()), answers
            text = b"".join(answers.values())
            for what in (b"first", b"second", b"dead", b"later", b"ValueError"):
                assert what in text
            task = db.lindex("blueque_pending_tasks_orders", -1).decode()
            (with_id,) = (command for command in commands if "ID" in command)
            assert b"first" in shown(with_id.replace("ID", task))


async def fill_by_hand(queue: Any) -> None:
    await queue.create(bound=20)
    await queue.put_many([b"first", b"second"])
    await queue.put(b"later", delay=3600)
    await queue.add_dead_letters(LETTERS[:1])


def test_a_pipe_whose_reader_has_left_ends_the_export(shop: Shop) -> None:
    shop.fill_new("orders", [b"x" * 1000] * 2000)
    with shop.running("export", "orders", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b'{"apressure": 1')
        process.stdout.close()
        process.stdout = None
        code, _, errors = ended(process)
    assert (code, errors) == (141, b"")
    assert shop.of("orders", lambda queue: queue.qsize()) == 2000
