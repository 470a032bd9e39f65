"""The header of each script names its arguments and answers; its step and the script itself must agree."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import re
from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any, cast

import pytest

from apressure import Client
from apressure.connection.waiting.rounds import Look, Rounds
from apressure.connection.wire.reconnecting import ReconnectingConnection
from apressure.connection.wire.script import Request, Series, prelude_of
from apressure.core.added_letters import Added
from apressure.core.browsing import Asked
from apressure.exceptions import Role
from apressure.pressure.engine.answers import read
from apressure.pressure.engine.dead_letters import DeadLetters
from apressure.pressure.engine.keys import Keys
from apressure.pressure.engine.sending import script
from apressure.pressure.engine.steps import Settlement, Steps, Want
from tests.unit.fakes import FakeConnection

LUA = {
    path.name.removesuffix(".lua"): path.read_text()
    for path in (resources.files("apressure.pressure.engine") / "lua").iterdir()
    if path.name.endswith(".lua")
}
PRELUDE = prelude_of("apressure.pressure.engine")
USUAL = {
    path.name.removesuffix(".lua"): path.read_text()
    for path in (resources.files("apressure.pressure.engine") / "lua" / "usual").iterdir()
}
each = pytest.mark.parametrize("name", sorted(LUA))


def header(name: str) -> dict[str, str]:
    """The entries `KEYS:`, `ARGV:` and `Returns:` of the comment that a script begins with."""
    lines: list[str] = []
    for line in LUA[name].splitlines():
        if not line.startswith("--"):
            break
        lines.append(line.removeprefix("--").strip())
    text = " ".join(lines)
    parts = re.split(r"\b(KEYS|ARGV|Returns):", text)
    return dict(zip(parts[1::2], (part.strip() for part in parts[2::2]), strict=True))


def arguments_of(name: str) -> tuple[list[str], bool]:
    """What the header says of each ARGV, in order, and whether the last one stands for any number."""
    text = header(name)["ARGV"]
    if text == "none":
        return [], False
    says: list[str] = []
    many = False
    while text:
        # "0 the newest" is no entry of the list: entries are counted from 1.
        begins = re.match(rf"{len(says) + 1}(\.\.\.)? ", text)
        assert begins is not None, "the header counts ARGV from 1"
        assert not many, "only the last ARGV may stand for many"
        many = begins[1] is not None
        entry, _, text = text[begins.end() :].partition(f", {len(says) + 2}")
        text = f"{len(says) + 2}{text}" if text else ""
        says.append(entry)
    return says, many


class Claiming(Steps):
    """Steps for which the token of a role has been claimed."""

    def take_claim(self, role: Role) -> bytes:
        return HELD[role]


def steps_of(name: str) -> Steps:
    client = Client(client_id="UID", url="redis://127.0.0.1:1")
    return Claiming(client, Keys(client.prefix, name), name)


async def sent(call: Callable[[Steps, Series], Any]) -> Request:
    connection = FakeConnection()
    steps = steps_of("jobs")
    steps.connection = cast("ReconnectingConnection", connection)
    answer = call(steps, steps.series())
    if inspect.isawaitable(answer):
        await answer
    await asyncio.sleep(0)
    (request,) = connection.requests
    return request


def ignore(*_: Any) -> None:
    """An answer that nobody waits for."""


class OneRound(Rounds):
    """Sends one look, as for a queue in which an operation waits."""

    def send(self, keys: Keys) -> None:
        self._send([Look(keys.for_look(), (b"WHY", TOKEN, PLACE), ignore)])

    def _answered(self, looks: Sequence[Look], reply: Any) -> None:
        pass


HELD: dict[Role, bytes] = {"producer": b"HELD-P", "consumer": b"HELD-C"}
TOKEN, PLACE = b"TOKEN", b"PLACE"
DEAD = DeadLetters(18, "failed", Keys("__pressure__", "failed"))
CALLS: dict[str, tuple[Callable[[Steps, Series], Any], dict[Any, str]]] = {
    # The step, with a value of its own for each argument, and the word in the header where that value belongs.
    "put": (
        lambda steps, series: steps.put("put", series, [b"m1", b"m2"], TOKEN, True, ignore),
        {b"UID": "uid", b"HELD-P": "was claimed", TOKEN: "lease token", b"m1": "messages"},
    ),
    "delay": (
        lambda steps, series: steps.put("delay", series, [b"m1", b"60", b"m2", b"@61"], TOKEN, True, ignore),
        {b"UID": "uid", b"HELD-P": "was claimed", TOKEN: "lease token", b"m1": "messages"},
    ),
    "get": (
        lambda steps, series: steps.get(series, 17, PLACE, ignore),
        {b"UID": "uid", b"HELD-C": "was claimed", b"17": "most messages", PLACE: "place"},
    ),
    "give_back": (
        lambda steps, series: steps.give_back(series, 18, [b"m1", b"m2"], ignore),
        {18: "sequence of the get", b"m1": "oldest first"},
    ),
    "receive": (
        lambda steps, series: steps.receive(
            series, TOKEN, True, Want(17, 30000, 19, DEAD, [(21, 22, 23)]), ignore
        ),
        {
            b"UID": "uid", TOKEN: "lease token", b"HELD-C": "was claimed", 17: "most messages", 30000: "milliseconds",
            19: "number to go on with", 18: "limit of deliveries", 21: "acknowledged ranges",
        },
    ),
    "bury": (
        lambda steps, series: steps.bury(DEAD, [Added("a", b"m1", 21, 22, 23, b"why")]),
        {b"m1": "message"},
    ),
    "requeue": (
        lambda steps, series: steps.requeue(series, steps_of("failed"), 17, [b"m1", b""]),
        {
            b"UID": "uid", b"HELD-P": "the producer role was claimed", b"HELD-C": "consumer role was claimed",
            17: "the most", b"m1": "chosen",
        },
    ),
    "promote": (lambda steps, series: steps.promote(17), {17: "how many"}),
    "discard": (
        lambda steps, series: steps.discard(series, [b"m1", b""]),
        {b"UID": "uid", b"HELD-C": "the consumer role was claimed", b"m1": "chosen"},
    ),
    "move": (
        lambda steps, series: steps.move(
            series, DEAD.keys, TOKEN, True, [21, 22, 1, 23, 24, 25], [b"m1", b"m2"]
        ),
        {
            b"UID": "uid", b"HELD-P": "producer role was claimed", TOKEN: "token of the lease", b"2": "long overdue",
            6: "arguments that describe units", 21: "runs of units",
        },
    ),
    "purge": (lambda steps, series: steps.purge(series, 17), {17: "most messages"}),
    "settle": (
        lambda steps, series: steps.settle(
            series, TOKEN, Settlement(30000, False, 18, [(21, 22, 23)], [24]), ignore
        ),
        {
            TOKEN: "lease token", 30000: "milliseconds", 18: "never handed out",
            3: "number of arguments that acknowledge", 21: "acknowledged ranges",
        },
    ),
    "join": (
        lambda steps, series: steps.acquire("consumer", TOKEN, 30000, PLACE),
        {b"UID": "uid", b"HELD-C": "was claimed", TOKEN: "member's token", 30000: "milliseconds"},
    ),
    "receive_shared": (
        lambda steps, series: steps.receive_shared(
            series, TOKEN, PLACE, Want(17, 30000, 19, DEAD, [(21, 22, 23)], [(25, 26), (27, 28)]), ignore
        ),
        {
            b"UID": "uid", TOKEN: "member's token", 17: "most messages", 30000: "milliseconds",
            18: "limit of deliveries", PLACE: "place", 19: "behind those of all", 4: "number of arguments",
            25: "ranges in hand",
        },
    ),
    "settle_shared": (
        lambda steps, series: steps.settle(
            series, TOKEN, Settlement(30000, False, 18, [(21, 22, 23)], [24], place=PLACE), ignore
        ),
        {
            TOKEN: "member's token", 30000: "milliseconds", 18: "never handed out", PLACE: "place",
            3: "number of arguments that acknowledge", 21: "acknowledged ranges",
        },
    ),
    "asked": (lambda steps, series: steps.note_asked("ID", 17), {b"ID": "the request", 17: "milliseconds"}),
    "resign": (lambda steps, series: steps.resign(PLACE, True), {PLACE: "place"}),
    "leave": (
        lambda steps, series: steps.leave(series, TOKEN, 30000, False, ignore),
        {TOKEN: "lease token", 30000: "milliseconds"},
    ),
    "renew": (
        lambda steps, series: steps.renew("producer", TOKEN, 30000, ignore),
        {"producer": "role", TOKEN: "lease token", 30000: "milliseconds"},
    ),
    "renew_shared": (
        lambda steps, series: steps.renew_shared(TOKEN, 30000, ignore),
        {TOKEN: "member's token", 30000: "milliseconds"},
    ),
    "unclaim": (lambda steps, series: steps.unclaim("producer"), {"producer": "role"}),
    "examine": (lambda steps, series: steps.examine(), {}),
    "repair": (
        lambda steps, series: steps.repair([b"ALL", b"P", b"C"], True, b"WHO"),
        {b"ALL": "all keys", b"P": "producer's", b"C": "consumer's", b"WHO": "holder's name", b"UID": "uid"},
    ),
    "create": (lambda steps, series: steps.create(17), {17: "bound"}),
    "acquire": (
        lambda steps, series: steps.acquire("producer", TOKEN, 30000),
        {b"UID": "uid", "producer": "role", b"HELD-P": "was claimed", TOKEN: "lease token", 30000: "milliseconds"},
    ),
    "close": (
        lambda steps, series: steps.close(TOKEN),
        {b"UID": "uid", b"HELD-P": "was claimed", TOKEN: "lease token"},
    ),
    "begin_delete": (lambda steps, series: steps.begin_delete(), {}),
    "pause": (lambda steps, series: steps.pause(True), {b"UID": "uid"}),
    "resume": (lambda steps, series: steps.pause(False), {}),
    "limit": (lambda steps, series: steps.limit({"concurrency": 3}), {"concurrency": "names"}),
    "finish_delete": (
        lambda steps, series: steps.finish_delete(),
        {b"HELD-P": "producer role was claimed", b"HELD-C": "consumer role was claimed"},
    ),
    "inspect": (lambda steps, series: steps.inspect(), {}),
    "dead_letters": (lambda steps, series: steps.dead_letters(17, 18), {17: "pass over", 18: "most"}),
    "peek": (lambda steps, series: steps.peek(-1), {-1: "index"}),
    "browse": (
        lambda steps, series: steps.browse(Asked("delayed", False, 17, 18, 19)),
        {b"delayed": "the place", b"0": "newest", 17: "pass over", 18: "most to return", 19: "most bytes"},
    ),
    "look": (
        lambda steps, series: OneRound(steps.connection, lambda: script("look")).send(steps.keys),
        {b"WHY": "why it waits"},
    ),
}  # fmt: skip


def test_every_script_has_a_step_in_this_module() -> None:
    assert set(CALLS) == set(LUA)


@each
def test_a_script_has_a_header(name: str) -> None:
    assert set(header(name)) == {"KEYS", "ARGV", "Returns"}
    assert header(name)["KEYS"].startswith("those of the prelude")


@each
async def test_a_step_sends_as_many_arguments_as_the_header_names(name: str) -> None:
    request = await sent(CALLS[name][0])
    says, many = arguments_of(name)
    assert len(request.arguments) >= len(says) if many else len(request.arguments) == len(says)


@each
async def test_a_step_sends_its_arguments_where_the_header_says(name: str) -> None:
    call, places = CALLS[name]
    request = await sent(call)
    says, _ = arguments_of(name)
    for value, word in places.items():
        assert request.arguments.count(value) == 1
        assert word in says[request.arguments.index(value)]
    assert (b"UID" in request.arguments) == ("uid" in says)


@each
async def test_a_step_that_changes_something_once_is_told_when_it_is_repeated(name: str) -> None:
    request = await sent(CALLS[name][0])
    says, _ = arguments_of(name)
    repeats = [index for index, text in enumerate(says) if "if this repeats a step" in text]
    assert repeats == ([] if request.again is None else [request.again])
    if request.again is not None:
        assert request.resend
        assert request.arguments[request.again] == b"0"
        assert says[request.again - 1] == "sequence"


@each
async def test_a_step_sends_the_keys_of_the_prelude(name: str) -> None:
    request = await sent(CALLS[name][0])
    keys = Keys("__pressure__", "jobs")
    sent_keys = request.call.keys
    if name == "look":
        assert sent_keys == keys.for_look()
        assert [key.rpartition(b":")[2].decode() for key in sent_keys if key != keys.messages] == re.findall(
            r":?\b(\w+)(?:,|$)", header(name)["KEYS"].partition("wait: ")[2].replace("the messages, ", "")
        )
        return
    series = sent_keys[26].rpartition(b":")[2].decode()
    assert sent_keys[:27] == keys.for_script(series)
    more = {
        "create": keys.collisions(),
        "finish_delete": (keys.reasons, keys.schedules, keys.dedup, *keys.counters),
        "examine": keys.collisions(),
        "repair": keys.collisions(),
        "receive": (*DEAD.keys.as_dead_letters(), *DEAD.keys.collisions()),
        "bury": DEAD.for_script(),
        "requeue": DEAD.keys.as_dead_letters(),
        "purge": (keys.reasons,),
        "discard": (keys.reasons,),
        "dead_letters": (keys.reasons,),
        "move": (*DEAD.keys.for_script("none"), DEAD.keys.line()[0]),
        "receive_shared": (*keys.line(), *DEAD.keys.as_dead_letters(), *DEAD.keys.collisions()),
        **dict.fromkeys(("get", "join", "settle_shared", "resign", "renew_shared"), keys.line()),
        **dict.fromkeys(("begin_delete", "pause", "resume"), (keys.resumed,)),
    }
    if name == "give_back":
        more[name] = (keys.operation(sent_keys[27].rpartition(b":")[2].decode()),)
        assert sent_keys[27] != sent_keys[26]  # the record of the get is not that of the step itself
    assert sent_keys[27:] == more.get(name, ())


@each
async def test_the_command_runs_the_scripts_source_or_its_digest(name: str) -> None:
    request = await sent(CALLS[name][0])
    short, whole = request.call.short.arguments, request.call.whole.arguments
    assert short == (b"EVALSHA", script(name).sha, len(request.call.keys), *request.call.keys)
    source = bytes(whole[1]).decode()  # type: ignore[arg-type]
    assert LUA[name] in source
    assert (USUAL[name] in source) if name in USUAL else ("usual()" not in source)
    assert hashlib.sha1(source.encode()).hexdigest().encode() == short[1]
    assert whole[2:] == short[2:]


@each
def test_a_script_has_those_functions_of_the_prelude_that_it_uses(name: str) -> None:
    source = re.sub(r"--.*", "", script(name).source.decode())
    defined = re.findall(r"^local function (\w+)", re.sub(r"--.*", "", PRELUDE), re.MULTILINE)
    assert len(defined) > 20
    for function in defined:
        uses = re.findall(rf"(?<!function )\b{function}\b", source)
        assert bool(uses) == (f"local function {function}(" in source)


@each
def test_a_script_reads_no_argument_that_its_header_does_not_name(name: str) -> None:
    says, many = arguments_of(name)
    body = "\n".join(line for line in LUA[name].splitlines() if not line.startswith("--"))
    used = {int(number) for number in re.findall(r"ARGV\[(\d+)\]", body)}
    assert used <= set(range(1, len(says) + 1))
    # What stands for many is read in a loop.
    assert set(range(1, len(says) + 1 - many)) <= used


@each
def test_a_script_answers_with_nothing_that_its_header_does_not_name(name: str) -> None:
    returns = header(name)["Returns"]
    body = "\n".join(line.partition("--")[0] for line in LUA[name].splitlines())
    answers = {word for line in re.findall(r"return (.*)", body) for word in re.findall(r"'([a-z]+)'", line)}
    if "check(" in body:
        answers |= {"missing", "corrupt"}
    if "enter(" in body:
        answers |= {"busy"}
    named = set(re.findall(r"\{'([a-z]+)'", returns))
    assert answers <= named | ({"closed", "empty"} & named)


@each
def test_a_step_understands_every_answer_of_its_script(name: str) -> None:
    samples: dict[str, list[Any]] = {
        "browsed": [b"browsed", 0, -1, []],
        "busy": [b"busy", b"producer", b"someone", -1],
        "corrupt": [b"corrupt", b"why"],
        "dead": [b"dead", b"why"],
        "large": [b"large", 5],
        "ok": [b"ok", 5],
    }
    # Some answers of one step each are read by that step itself.
    for word in set(re.findall(r"\{'([a-z]+)'", header(name)["Returns"])) - {"collides", "exists", "recreated"}:
        answer = samples.get(word, [word.encode()])
        assert read(answer, "jobs", "producer") is not answer


def test_the_prelude_names_the_keys_in_the_order_in_which_they_are_sent() -> None:
    keys = Keys("p", "jobs")
    sent_keys = [key.rpartition(b":")[2].decode() for key in (*keys.for_script("x"), *keys.line())]
    for number, word in re.findall(r"\b(\d+) :?(\w+)", PRELUDE.partition("KEYS: ")[2].partition("Scripts never")[0]):
        if word not in ("the", "stats"):
            expected = sent_keys[int(number) - 1] if word != "op" else "op"
            assert word == expected
    # A role's key is at the place of the first role's one, plus the number of the role.
    names, places = re.findall(r"^local (HOLDER, .*) = (.*)$", PRELUDE, re.MULTILINE)[0]
    suffixes = {"HOLDER": "", "FREE": "_free", "LEASE": "_lease", "CLAIM": "_claim", "CLAIM_UNTIL": "_claim_until"}
    for name, place in zip(names.split(", "), map(int, places.split(", ")), strict=True):
        if name in suffixes:
            assert sent_keys[place - 1 : place + 1] == [f"producer{suffixes[name]}", f"consumer{suffixes[name]}"]
        else:
            assert sent_keys[place - 1] == f"produced_{name.lower()}"
            assert sent_keys[place + 1] == f"consumed_{name.lower()}"


NAMED = {
    # What a script for the usual case calls its keys: it does without the prelude, which costs more than such a case.
    "LIST": "jobs", "HOLDER": "producer consumer", "COUNT": "produced_messages consumed_messages",
    "BYTES": "produced_bytes consumed_bytes", "FREE": "producer_free consumer_free",
}  # fmt: skip


def test_a_usual_case_is_one_of_a_step() -> None:
    assert set(USUAL) - {"prelude"} < set(LUA)
    # It does without the prelude's constants, too.
    assert re.findall(r"(?:RECORD_MS|CHUNK|WATCH_MS) = (\d+)", PRELUDE) == ["300000", "1000", "4500"]
    assert "WATCH_MS = 4500" in USUAL["prelude"]
    assert "'PX', 300000" in USUAL["put"]
    assert "messages > 1000" in USUAL["put"]


@pytest.mark.parametrize("text", [PRELUDE, *LUA.values(), *USUAL.values()], ids=["prelude", *LUA, *USUAL])
def test_a_line_is_not_too_long(text: str) -> None:
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize("name", sorted(USUAL))
def test_a_usual_case_names_the_keys_as_they_are_sent(name: str) -> None:
    keys = Keys("p", "jobs")
    sent_keys = [
        "op" if b":op:" in key else key.rpartition(b":")[2].decode() for key in (*keys.for_script("x"), *keys.line())
    ]
    found = re.findall(r"^ *local ([A-Z_, ]+) = (KEYS.*)$", USUAL[name], re.MULTILINE)
    assert found
    for names, values in found:
        for word, number in zip(names.split(", "), re.findall(r"KEYS\[(\d+)\]", values), strict=True):
            assert sent_keys[int(number) - 1] in NAMED.get(word, word.lower()).split()
    assert len(re.findall(r"KEYS\[", USUAL[name])) == sum(names.count(",") + 1 for names, _ in found)
