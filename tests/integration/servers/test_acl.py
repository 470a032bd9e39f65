"""The users of docs/rely/security.md: their rights are enough for everything that they do, and not one is too many."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

import apressure
from apressure import AsyncQueue, Envelope, PermissionDeniedError, ScriptingRefusedError
from apressure.connection.wire.script import prelude_of
from apressure.embedded import EmbeddedServer
from tests.integration.acl_roles import DOCUMENT, KEY, OURS, allow, documented, for_old_servers, play, rights, without
from tests.integration.conftest import in_time, renewed_while_blocked
from tests.servers import SERVERS, admin

Make = Callable[..., EmbeddedServer]
both = pytest.mark.parametrize("kind", SERVERS)
ROOM = Path(apressure.__path__[0])
LUA = ROOM / "pressure" / "engine" / "lua"


def cases() -> list[Any]:
    return [
        pytest.param(role, plain, id=f"{role}-{'plain' if plain else 'scripts'}")
        for plain in (False, True)
        for role in documented(plain)
    ]


@both
@pytest.mark.parametrize(("role", "plain"), cases())
async def test_a_user_of_the_docs_can_do_its_work(make_server: Make, kind: str, role: str, plain: bool) -> None:
    server = make_server(kind)
    rules = documented(plain)[role]
    await play(server, role, rules, scripting=not plain)
    await play(server, role, for_old_servers(rules), scripting=not plain)


@both
@pytest.mark.parametrize(("role", "plain"), cases())
async def test_each_right_of_the_docs_is_needed(make_server: Make, kind: str, role: str, plain: bool) -> None:
    server = make_server(kind)
    rules = documented(plain)[role]
    superfluous = []
    for right in rights(rules):
        try:
            await play(server, role, without(rules, right), scripting=not plain)
        except (PermissionDeniedError, ScriptingRefusedError):
            continue
        superfluous.append(right)
    assert not superfluous


@both
async def test_a_producer_cannot_read_and_who_looks_cannot_write(make_server: Make, kind: str) -> None:
    server = make_server(kind)
    async with AsyncQueue("orders", url=server.url) as owner:
        await owner.create()
        await owner.put_many([b"1", b"2"])
    reading: list[tuple[Any, ...]] = [
        ("RPOP", KEY),
        ("LPOP", KEY),
        ("LRANGE", KEY, 0, -1),
        ("LINDEX", KEY, -1),
        ("BRPOP", KEY, 0.1),
        ("BLMOVE", KEY, KEY, "RIGHT", "RIGHT", 0.1),
        ("LMOVE", KEY, KEY, "RIGHT", "RIGHT"),
        ("LMOVE", KEY, f"{OURS}:inflight", "RIGHT", "RIGHT"),
        ("BLMOVE", KEY, f"{KEY}:not_full", "RIGHT", "RIGHT", 0.1),
        ("GETRANGE", KEY, 0, -1),
        ("SORT", KEY, "BY", "nosort"),
        ("DUMP", KEY),
        ("COPY", KEY, f"{KEY}:copy"),
        ("MONITOR",),
        ("SUBSCRIBE", "__keyspace@0__:*"),
        ("PUBLISH", "any", "x"),
    ]
    writing: list[tuple[Any, ...]] = [("SET", KEY, 1), ("DEL", KEY), ("LPUSH", KEY, 1), ("HSET", KEY, "a", 1)]
    takes = [one for one in reading if one[0] not in {"LRANGE", "LINDEX"}]
    cases = (("producer", reading), ("monitor", reading + writing), ("viewer", takes + writing))
    for role, forbidden in cases:
        with redis.Redis.from_url(allow(server, role, documented(plain=False)[role])) as user:
            for command in forbidden:
                with pytest.raises(redis.ResponseError, match=r"(?i)permission"):
                    user.execute_command(*command)
                if command[0] in {"MONITOR", "SUBSCRIBE", "PUBLISH"}:
                    continue  # not for scripts
                with pytest.raises(redis.ResponseError, match=r"(?i)ACL failure|user executing|not allowed from"):
                    user.eval("return redis.call(unpack(ARGV))", 1, KEY, *command)
    with admin(server) as db:
        assert db.lrange(KEY, 0, -1) == [b"2", b"1"]


@both
@pytest.mark.parametrize("role", documented(plain=False))
async def test_a_user_of_the_docs_has_nothing_to_say_in_other_queues(make_server: Make, kind: str, role: str) -> None:
    server = make_server(kind)
    url = allow(server, role, documented(plain=False)[role])
    async with AsyncQueue("others", url=server.url) as owner, AsyncQueue("others", url=url) as queue:
        await owner.create()
        await owner.put(b"x")
        for operation in (queue.put(b"x"), queue.get(), queue.delete(), queue.statistics(), queue.exists()):
            with pytest.raises(PermissionDeniedError):
                await operation


@both
async def test_a_user_of_the_docs_asks_and_another_one_replies(make_server: Make, kind: str) -> None:
    server = make_server(kind)
    rules = for_old_servers(documented(plain=False)["producer"])
    urls = (
        allow(server, "producer", [*rules, "+lrange"]),
        allow(server, "consumer", documented(plain=False)["consumer"]),
    )
    async with (
        AsyncQueue("orders", url=server.url) as owner,
        AsyncQueue("orders", url=urls[0], codec="cloudevents") as asking,
        AsyncQueue("orders", url=urls[1], codec="cloudevents") as working,
    ):
        await owner.create()
        for shared in (False, True):
            request = asyncio.ensure_future(asking.ask(Envelope(b"7"), 10.0))
            async with working.consumer("manual", shared=shared) as deliveries:
                delivery = await in_time(anext(deliveries))
                assert await delivery.still_asked()
                await delivery.reply("done")
            assert await in_time(request) == "done"
    async with AsyncQueue("orders", url=allow(server, "producer", [*rules, "-lrange"]), codec="cloudevents") as asking:
        with pytest.raises(PermissionDeniedError):
            await in_time(asking.ask(Envelope(b"7"), 10.0))


SCRIPTS_OF = {
    "producer": {"put", "delay", "acquire", "leave", "renew", "close", "unclaim", "inspect", "look"},
    "consumer": {
        "get",
        "receive",
        "settle",
        "renew",
        "renew_shared",
        "join",
        "receive_shared",
        "settle_shared",
        "resign",
        "acquire",
        "give_back",
        "unclaim",
        "begin_delete",
        "finish_delete",
        "inspect",
        "look",
        "purge",
        "limit",
        "asked",
    },
    "operator": {
        "browse",
        "create",
        "dead_letters",
        "close",
        "begin_delete",
        "finish_delete",
        "unclaim",
        "inspect",
        "peek",
        "purge",
        "requeue",
        "bury",
        "discard",
        "promote",
        "pause",
        "resume",
        "limit",
        "examine",
        "repair",
    },
    "monitor": {"inspect"},
    "viewer": {"browse", "inspect", "peek"},
}
OF_A_STAGE = {"move"}
"""What the user of a pipe runs besides: it has the rights of a consumer, and those of a producer."""
_CALLED = re.compile(r"(?:p?call|push)\(\s*(?:command or )?'([A-Z]+)'")


def commands_of(script: str) -> set[str]:
    """The commands that a script may call, by itself or in the functions of the prelude that it can reach."""
    without_comments = {path.stem: re.sub(r"--.*", "", path.read_text()) for path in LUA.glob("*.lua")}
    functions = {
        found[1]: found[2]
        for found in re.finditer(
            r"^local function (\w+)(.*?)^end",
            re.sub(r"--.*", "", prelude_of("apressure.pressure.engine")),
            re.DOTALL | re.MULTILINE,
        )
    }
    commands: set[str] = set()
    unread, seen = [without_comments[script]], set()
    usual = LUA / "usual" / f"{script}.lua"
    if usual.is_file():
        unread.append(re.sub(r"--.*", "", usual.read_text()))
    while unread:
        text = unread.pop()
        commands.update(name.lower() for name in _CALLED.findall(text))
        for name, body in functions.items():
            if name not in seen and re.search(rf"\b{name}\(", text):
                seen.add(name)
                unread.append(body)
    return commands


@both
async def test_users_of_the_docs_keep_their_leases_while_their_event_loop_is_blocked(
    make_server: Make, kind: str
) -> None:
    server = make_server(kind)
    urls = {role: allow(server, role, documented(plain=False)[role]) for role in ("producer", "consumer")}
    with admin(server) as db:
        async with AsyncQueue("orders", url=server.url) as owner:
            await owner.create()
        async with (
            AsyncQueue("orders", url=urls["producer"]) as feeding,
            AsyncQueue("orders", url=urls["consumer"]) as working,
            feeding.producer(exclusive=True, close=False, lease=3) as producer,
            working.consumer(lease=3) as consumer,
        ):
            await producer.put(b"1")
            assert await anext(consumer) == b"1"
            for role in urls:
                renewed_while_blocked(db, f"{OURS}:{role}_lease")


def test_every_script_belongs_to_somebody() -> None:
    scripts = {path.stem for path in LUA.glob("*.lua")}
    assert set().union(OF_A_STAGE, *SCRIPTS_OF.values()) == scripts


def test_the_rights_of_a_consumer_and_a_producer_are_enough_for_a_stage() -> None:
    allowed = [*rights(documented(plain=False)["consumer"]), *rights(documented(plain=False)["producer"])]
    assert set().union(*map(commands_of, OF_A_STAGE)) <= set(allowed)


@pytest.mark.parametrize("role", SCRIPTS_OF)
def test_the_docs_allow_what_the_scripts_of_a_role_call_and_nothing_else(role: str) -> None:
    wanted = set().union(*(commands_of(script) for script in SCRIPTS_OF[role])) | {"evalsha", "eval", "exists"}
    wanted |= {
        "producer": {"blmove"},
        "consumer": {"blmove", "brpop"},
        "operator": {"blmove", "scan"},
        "monitor": {"scan"},
        "viewer": {"scan"},
    }[role]
    assert set(rights(documented(plain=False)[role])) == wanted


def test_no_script_calls_a_command_that_the_search_for_them_misses() -> None:
    for path in LUA.rglob("*.lua"):
        text = re.sub(r"--.*", "", path.read_text())
        calls = len(re.findall(r"\bcall\(|redis\.p?call\(", text))
        seen = re.findall(r"\bp?call\((?:command or )?'[A-Z]+'", text)
        assert calls == len(seen) + text.count("call(command, key,")


WORDS = {"COUNT", "LEFT", "MATCH", "RIGHT", "TYPE", "WITHSCORES"} | {
    "UTC", "ERR", "MOVED", "NOAUTH", "NOPERM", "NOSCRIPT", "OOM", "READONLY", "UNBLOCKED", "WRONGPASS", "WRONGTYPE",
    "SLOTS",
}  # fmt: skip
"""Capitals in quotes that are no commands: arguments, and codes of replies."""


def test_the_docs_name_every_command_that_a_connection_sends() -> None:
    document = DOCUMENT.read_text()
    elsewhere = {"blocking": "reference/spark.md", "subscription": "do/events-server.md"}  # what only these use
    paths = [path for room in ("core", "connection", "pressure") for path in (ROOM / room).rglob("*.py")]
    assert len(paths) > 50
    for path in paths:
        if path.stem == "replies":
            continue
        for name in set(re.findall(r'"([A-Z]{3,})"', path.read_text())) - WORDS:
            text = document + (
                (DOCUMENT.parents[1] / elsewhere[path.stem]).read_text() if path.stem in elsewhere else ""
            )
            assert re.search(rf"[+`]{name.lower()}\b|[|]{name.lower()}\b", text), f"{path.name} sends {name}"
