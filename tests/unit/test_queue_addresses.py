"""Addresses of queues: what they say, what is written for a wrong one, and the objects that they open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from apressure import AsyncQueue, Client, EventQueue, FileQueue, TaskQueue, open_queue
from apressure.queue_addresses import QueueAddress, read

SECRET = "Pa55word"


@pytest.mark.parametrize(
    ("text", "kind", "name"),
    [
        ("orders", "queue", "orders"),
        ("queue:orders", "queue", "orders"),
        ("jobs:dead", "queue", "jobs:dead"),
        ("Events:orders", "queue", "Events:orders"),
        ("events", "queue", "events"),
        ("queue:events:orders", "queue", "events:orders"),
        ("queue:redis://host", "queue", "redis://host"),
        ("queue:redis:/host", "queue", "redis:/host"),
        ("redis:cache", "queue", "redis:cache"),
        ("/orders?#@%41 ", "queue", "/orders?#@%41 "),
        ("events:orders", "events", "orders"),
        ("events:tasks:orders", "events", "tasks:orders"),
        ("tasks:video.encode", "tasks", "video.encode"),
        ("files:spool/orders", "files", "spool/orders"),
        ("files:/var/spool/orders", "files", "/var/spool/orders"),
        ("\udcff", "queue", "\udcff"),
    ],
)
def test_an_address_without_a_server(text: str, kind: Any, name: str) -> None:
    assert read(text) == QueueAddress(kind, name)
    assert read(str(read(text))) == QueueAddress(kind, name)  # what the command line prints is an address
    server = None if kind == "files" else "redis://h"
    assert read(text, url="redis://h") == QueueAddress(kind, name, server)


@pytest.mark.parametrize(
    ("text", "server", "shown"),
    [
        ("redis://h:6379/0/orders", "redis://h:6379/0", "orders"),
        ("redis://h/orders", "redis://h", "orders"),
        ("redis://h/3/events:a/b", "redis://h/3", "events:a/b"),
        ("redis://h/3/7", "redis://h/3", "7"),
        ("REDISS://me:p%40ss@h:1/0/tasks:orders?ssl_cert_reqs=none", "REDISS://me:p%40ss@h:1/0?ssl_cert_reqs=none",
         "tasks:orders"),
        ("redis://h/0/a%2Fb%3F%23%40%25", "redis://h/0", "a/b?#@%"),
        ("redis://h/0/events%3Aorders", "redis://h/0", "queue:events:orders"),
        ("redis://h/0/a%FF", "redis://h/0", "a\udcff"),
        ("redis://me:x@h/0/a@b", "redis://me:x@h/0", "a@b"),
        ("redis+cluster://a:1,b:2/events:orders", "redis+cluster://a:1,b:2", "events:orders"),
        ("redis+cluster://a:1,[::1]:2/0/orders", "redis+cluster://a:1,[::1]:2/0", "orders"),
        ("rediss+sentinel://a,b/mymaster/orders", "rediss+sentinel://a,b/mymaster", "orders"),
        ("redis+sentinel://a,b/mymaster/2/tasks:x?sentinel_password=s",
         "redis+sentinel://a,b/mymaster/2?sentinel_password=s", "tasks:x"),
        ("unix:///run/valkey.sock/events:orders?db=2", "unix:///run/valkey.sock?db=2", "events:orders"),
        ("embedded:///orders", "embedded://", "orders"),
        ("embedded:///var/data/tasks:orders", "embedded:///var/data", "tasks:orders"),
        ("okq://h:4777/orders", "okq://h:4777", "events:orders"),
        ("okqs://:x@h/events:a/b", "okqs://:x@h", "events:a/b"),
        ("okq+unix:///run/okq.sock/orders", "okq+unix:///run/okq.sock", "events:orders"),
    ],
)  # fmt: skip
def test_an_address_with_a_server(text: str, server: str, shown: str) -> None:
    found = read(text)
    assert found.url == server
    assert str(found) == shown
    assert read(text, url="redis://elsewhere") == found


@pytest.mark.parametrize(
    ("text", "path"),
    [("file:///var/spool/orders", "/var/spool/orders"), ("file://localhost/a%20b%23", "/a b#")],
)
def test_the_url_of_a_directory(text: str, path: str) -> None:
    assert read(text, url="redis://h") == QueueAddress("files", path)


def test_a_name_alone_is_of_the_kind_that_is_expected() -> None:
    assert read("orders", "tasks") == QueueAddress("tasks", "orders")
    assert read("events:orders", "tasks").kind == "events"
    assert read("orders", url="okq://h") == QueueAddress("events", "orders", "okq://h")
    assert read("events:orders", url="okq://h") == QueueAddress("events", "orders", "okq://h")
    assert read("files:orders", url="okq://h") == QueueAddress("files", "orders")


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("", "names no queue. Write the name of one: orders"),
        ("events:", "Write events:orders"),
        ("events://orders", "Write events:NAME"),
        ("http://host/orders", "Write redis://host:6379/0/orders, .* or queue:http:"),
        ("redis:/h/0/orders", "a URL has two slashes. Write redis://"),
        ("redis://h", "redis://host:6379/0/orders"),
        ("redis://h/", "redis://host:6379/0/orders"),
        ("redis://h/0", "redis://host:6379/0/orders"),
        ("redis://h/0/", "redis://host:6379/0/orders"),
        ("redis://h/0/events:", "Write events:orders"),
        ("redis+cluster://a,b", r"redis\+cluster://host:6379,host:6379/orders"),
        ("redis+sentinel://a,b/mymaster", r"redis\+sentinel://host:26379,host:26379/mymaster/0/orders"),
        ("redis+sentinel://a,b/mymaster/0", r"redis\+sentinel://host:26379,host:26379/mymaster/0/orders"),
        ("unix:///run/valkey.sock", "unix:///path/to/the.sock/orders"),
        ("embedded://orders", "embedded:///some/directory/orders"),
        ("okq://h", "okq://host:4777/orders"),
        ("okq://h/tasks:x", "an okq server has queues of events only, not tasks:x. Write its name alone"),
        ("redis://h/0/files:x", "Write files:spool/orders"),
        ("file://spool/orders", "Write file:///var/spool/orders, or files:spool/orders"),
        ("file:///a?b", "file:///var/spool/orders"),
        ("file:///", "file:///var/spool/orders"),
        ("redis://h/0/a#b", "# as %23"),
        ("redis://h/0/a@b", "@ as %40"),
    ],
)
def test_a_wrong_address_says_what_to_write(text: str, advice: str) -> None:
    with pytest.raises(ValueError, match=advice):
        read(text)


@pytest.mark.parametrize("place", ["/", "#", "?", "@", "[", ":"])
@pytest.mark.parametrize("end", ["@h/0/orders", "@h/0", "@h", ""])
@pytest.mark.parametrize("scheme", ["redis", "rediss+sentinel", "redis+cluster", "okq", "unix", "embedded", "mongo"])
@pytest.mark.parametrize("slashes", ["//", "/"])
def test_no_error_shows_a_password(scheme: str, slashes: str, end: str, place: str) -> None:
    if (scheme, slashes) == ("mongo", "/"):
        return  # the name of a queue
    address = f"{scheme}:{slashes}me:{SECRET}{place}{SECRET}{end}"
    try:
        queue = open_queue(address)
    except (TypeError, ValueError) as error:
        shown = [str(error), str(error.__cause__), str(error.__context__ if not error.__suppress_context__ else "")]
        assert SECRET not in "".join(shown)
    else:
        assert SECRET not in repr(queue)


def test_the_object_is_that_of_the_class(tmp_path: Path) -> None:
    url = "redis://127.0.0.1:1/0"
    for queue in (open_queue("orders", url=url, max_attempts=3), open_queue(f"{url}/orders", max_attempts=3)):
        assert isinstance(queue, AsyncQueue)
        assert (queue.name, queue.max_attempts) == ("orders", 3)
        assert queue.client.settings.address.text == "127.0.0.1:1 (database 0)"
    assert isinstance(open_queue(f"{url}/events:orders"), EventQueue)
    assert isinstance(open_queue("tasks:orders", url=url, result_ttl=None, codec="text"), TaskQueue)
    for queue in (open_queue("okq://127.0.0.1:1/orders"), open_queue("orders", url="okq://127.0.0.1:1")):
        assert repr(queue) == "<EventQueue 'orders' at 127.0.0.1:1>"
    for text in (f"files:{tmp_path}/orders", f"file://{tmp_path}/orders"):
        files = open_queue(text, bound=5)
        assert isinstance(files, FileQueue)
        assert files.path == tmp_path / "orders"
    files = open_queue("files:orders", directory=tmp_path)
    assert isinstance(files, FileQueue)
    assert files.path == tmp_path / "orders"


def test_queues_share_a_client() -> None:
    client = Client("redis://127.0.0.1:1")
    queues: list[Any] = [open_queue(text, client=client) for text in ("a", "events:b", "tasks:c")]
    assert [queue.client for queue in queues] == [client] * 3


def test_contradictions_are_refused() -> None:
    client = Client("redis://127.0.0.1:1")
    with pytest.raises(TypeError, match="the address names the server: leave out url="):
        open_queue("redis://h/0/orders", url="redis://h")
    with pytest.raises(TypeError, match="a queue in a directory has no server: leave out url="):
        open_queue("files:orders", url="redis://h")
    with pytest.raises(TypeError, match="client="):
        open_queue("orders", url="redis://h", client=client)
    with pytest.raises(TypeError, match="client="):
        open_queue("redis://h/0/orders", client=client)
    with pytest.raises(TypeError, match="unknown option 'client'"):
        open_queue("files:orders", client=client)
    with pytest.raises(TypeError, match="unknown option 'on_orphan'"):
        open_queue("orders", on_orphan="fail")
    with pytest.raises(TypeError, match="address must be a string, not int"):
        open_queue(5)  # type: ignore[call-overload]
