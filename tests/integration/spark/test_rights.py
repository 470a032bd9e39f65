"""The rights that Spark needs, as docs/spark.md says."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from apressure import (
    PermissionDeniedError,
    ScriptingRefusedError,
    ServerError,
)
from apressure.connection.blocking import Blocking
from apressure.embedded import EmbeddedServer
from apressure.spark import flights
from apressure.spark.options import Options
from apressure.spark.steps import Full, Steps
from tests.integration import acl_roles
from tests.integration.acl_roles import rights, without
from tests.integration.spark.place import Place, seal, texts
from tests.servers import admin

pytest.importorskip("redis", "5.3", reason="Spark needs redis-py 5.3")
pytestmark = pytest.mark.leaves_keys


DOCUMENT = Path(__file__).parents[3] / "docs" / "spark.md"


def documented() -> list[str]:
    (block,) = re.findall(r"```sh\n(redis-cli ACL SETUSER .*?)```", DOCUMENT.read_text(), re.DOTALL)
    return shlex.split(block.replace("\\\n", " "))[4:]


def use_everything(server: EmbeddedServer, rules: list[str]) -> None:
    """Do with those rights whatever Spark and the doctor do to a queue, what dead clients left included."""
    with admin(server) as plain:
        plain.flushall()
        plain.execute_command("SCRIPT", "FLUSH")
        plain.execute_command("ACL", "SETUSER", "spark", *rules, ">secret")
        options = Options.of({"url": server.url, "username": "spark", "password": "secret", "queue": "orders"})
        blocking = Blocking(options.settings())
        try:
            place = Place(server.url, plain, Steps(blocking, "__pressure__", "orders"))
            steps, keys = place.steps, place.steps.keys.queue
            steps.create(0)
            place.put(texts(5000), "orders")
            plain.lpush(keys.inflight, b"b")
            plain.hset(keys.apart, "1", b"2:a")
            for role in ("consumer", "producer"):
                plain.hset(keys.lease(role), mapping={"token": "t", "uid": "dead", "deadline": 1})
                plain.set(keys.claim_until(role), 1)
                plain.lpush(keys.claim(role), 1, 1)
                plain.lpush(keys.free(role), 1, 1)
            plain.lpush(keys.not_full, 1, 1)
            epoch, _, _ = steps.adopt("g")
            assert steps.claim("consumer", 0.1)
            assert seal(steps, epoch, 0, 10, held=True) == 1
            assert seal(steps, epoch, 1, 0) == 2
            length, found = steps.server.together(
                (b"LLEN", steps.keys.batch("g", 1)), (b"LRANGE", steps.keys.batch("g", 1), 0, -1)
            )
            assert length == len(found) == 10
            assert steps.slices("g", epoch, 1, 1) == [(0, 10)]
            steps.commit("g", epoch, 1, 1)
            assert steps.length() == steps.measure()[1] == 0
            assert steps.snapshot(0, 0, 1) == (5002, [])
            assert flights.look(blocking.settings, "orders")[0].batches == 1
            assert flights.give_back(blocking.settings, "orders", "g") == 4992
            plain.set(keys.bound, 4993)
            push = b"$1\r\na\r\n$1\r\nb\r\n"
            assert blocking.push_once(steps.keys.part("w", "a"), 2, push, 60_000) == 2
            assert steps.exists()
            for number, remember in enumerate((True, False)):
                token = "a" if remember else "b"
                if not remember:
                    plain.delete(keys.messages)
                    blocking.push_once(steps.keys.part("w", token), 2, push, 60_000)
                todo = steps.record("w", number, 0 if remember else 60_000, [(token, 2, 2)])
                while todo:
                    answer = steps.publish("w", number, todo, remember)
                    if isinstance(answer, Full):
                        steps.await_room(0.01)
                        plain.delete(keys.messages)
                    else:
                        assert isinstance(answer, str)
                        todo = answer
                if not remember:
                    steps.keep("w", 60_000, ["b"])
            blocking.push_once(steps.keys.part("w", "c"), 2, push, 60_000)
            steps.discard("w", "c")
            steps.await_message(0.01)
            assert steps.close() == 1
        finally:
            blocking.close()


@pytest.mark.parametrize("kind", ["valkey", "redis"])
def test_the_rights_of_the_docs_are_enough_and_each_is_needed(
    make_server: Callable[..., EmbeddedServer], kind: str
) -> None:
    server = make_server(kind)
    rules = documented()
    use_everything(server, rules)
    superfluous = []
    for right in rights(rules):
        try:
            use_everything(server, without(rules, right))
        except (PermissionDeniedError, ScriptingRefusedError, ServerError):
            continue
        superfluous.append(right)
    assert not superfluous


def test_an_operator_may_look_for_batches(make_server: Callable[..., EmbeddedServer]) -> None:
    server = make_server()
    with admin(server) as plain:
        plain.execute_command("ACL", "SETUSER", "operator", *acl_roles.documented(False)["operator"], ">secret")
    steps = Steps(Blocking(Options.of({"url": server.url, "queue": "orders"}).settings()), "__pressure__", "orders")
    steps.create(0)
    epoch, _, _ = steps.adopt("g")
    Place(server.url, None, steps).put(texts(3), "orders")  # type: ignore[arg-type]
    assert seal(steps, epoch, 0, 0) == 1
    options = Options.of({"url": server.url, "username": "operator", "password": "secret", "queue": "orders"})
    (flight,) = flights.look(options.settings(), "orders")
    assert flight.messages == 3
    steps.server.close()
