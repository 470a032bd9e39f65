"""The rights that Spark needs, as docs/reference/spark.md says."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from apressure import PermissionDeniedError, ScriptingRefusedError, ServerError
from apressure.embedded import EmbeddedServer
from apressure.spark import sealed_batches
from apressure.spark.engine.steps import NoRoom
from tests.integration import acl_roles
from tests.integration.acl_roles import rights, without
from tests.integration.spark.support import Jobs, connect, seal, texts
from tests.servers import SERVERS, admin

pytest.importorskip("redis", "5.3", reason="Spark needs redis-py 5.3")
pytestmark = pytest.mark.leaves_keys


DOCUMENT = Path(__file__).parents[3] / "docs" / "reference" / "spark.md"


def documented() -> list[str]:
    (block,) = re.findall(r"```sh\n(redis-cli ACL SETUSER .*?)```", DOCUMENT.read_text(), re.DOTALL)
    return shlex.split(block.replace("\\\n", " "))[4:]


def use_everything(server: EmbeddedServer, rules: list[str]) -> None:
    """Do with those rights whatever Spark and the doctor do to a queue, what dead clients left included."""
    with admin(server) as plain:
        plain.flushall()
        plain.execute_command("SCRIPT", "FLUSH")
        plain.execute_command("ACL", "SETUSER", "spark", *rules, ">secret")
        blocking = connect(server.url, username="spark", password="secret")
        try:
            orders = Jobs(server.url, plain, blocking, "orders")
            steps, sink, keys = orders.source, orders.sink, orders.keys.queue
            steps.create(0)
            orders.put(texts(5000))
            plain.lpush(keys.inflight, b"b")
            plain.hset(keys.apart, "1", b"2:a")
            for role in ("consumer", "producer"):
                plain.hset(keys.lease(role), mapping={"token": "t", "uid": "dead", "deadline": 1})
                plain.set(keys.claim_until(role), 1)
                plain.lpush(keys.claim(role), 1, 1)
                plain.lpush(keys.free(role), 1, 1)
            plain.lpush(keys.not_full, 1, 1)
            epoch, _, _ = steps.begin_epoch()
            assert steps.claim("consumer", 0.1)
            assert seal(steps, epoch, 0, 10, claimed=True) == 1
            assert seal(steps, epoch, 1, 0) == 2
            length, found = blocking.together((b"LLEN", steps.batch(1)), (b"LRANGE", steps.batch(1), 0, -1))
            assert length == len(found) == 10
            assert steps.batch_rows(epoch, 1, 1) == [(0, 10)]
            assert steps.note_failures(1, 0, 10, [4]) == 1
            steps.bury(epoch, 1)
            steps.commit(epoch, 1, 1)
            assert steps.length() == steps.measure()[1] == 0
            assert steps.peek(0, 0, 1) == (5002, [])
            assert sealed_batches.uncommitted(blocking.settings, "orders")[0].batches == 1
            assert sealed_batches.give_back(blocking.settings, "orders", "g") == 4992
            plain.set(keys.bound, 4993)
            push = b"$1\r\na\r\n$1\r\nb\r\n"
            assert blocking.push_once(steps.keys.part("w", "a"), 2, push, 60_000) == 2
            assert steps.exists()
            for number, remember in enumerate((True, False)):
                token = "a" if remember else "b"
                if not remember:
                    plain.delete(keys.messages)
                    blocking.push_once(steps.keys.part("w", token), 2, push, 60_000)
                todo = sink.choose_parts("w", number, 0 if remember else 60_000, [(token, 2, 2)])
                while todo:
                    answer = sink.put_part("w", number, todo, remember)
                    if isinstance(answer, NoRoom):
                        steps.await_room(0.01)
                        plain.delete(keys.messages)
                    else:
                        assert isinstance(answer, str)
                        todo = answer
                if not remember:
                    sink.extend("w", 60_000, ["b"])
            blocking.push_once(steps.keys.part("w", "c"), 2, push, 60_000)
            sink.discard("w", "c")
            steps.await_message(0.01)
            assert steps.close() == 1
            steps.forget()
        finally:
            blocking.close()


@pytest.mark.parametrize("kind", SERVERS)
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


def test_an_operator_may_list_batches(make_server: Callable[..., EmbeddedServer]) -> None:
    server = make_server()
    with admin(server) as plain:
        plain.execute_command("ACL", "SETUSER", "operator", *acl_roles.documented(False)["operator"], ">secret")
        orders = Jobs(server.url, plain, connect(server.url), "orders")
        orders.source.create(0)
        epoch, _, _ = orders.source.begin_epoch()
        orders.put(texts(3))
        assert seal(orders.source, epoch, 0, 0) == 1
    settings = connect(server.url, username="operator", password="secret").settings
    (found,) = sealed_batches.uncommitted(settings, "orders")
    assert found.messages == 3
    orders.server.close()
