"""`apressure ask`, and `apressure worker --reply`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.commands import Commands

# What does not depend on the server runs on one of them.
pytestmark = [pytest.mark.leaves_keys, pytest.mark.parametrize("server", ["valkey"], indirect=True)]

APP = """
async def echo(item):
    item = getattr(item, "data", item)
    text = item if isinstance(item, str) else item.decode() if isinstance(item, bytes) else item["text"]
    if text == "bytes":
        return b"\\x00\\xff"
    if text == "bad":
        raise ValueError("no such product")
    return text if text.startswith("plain") else {"got": text}
"""


@pytest.mark.parametrize("kind", ["events", "tasks", "queue"])
def test_a_worker_replies(cli: Commands, tmp_path: Path, kind: str) -> None:
    (tmp_path / "app.py").write_text(APP)
    queue = f"{kind}:prices"
    worker = ("worker", "app:echo", queue, "--app-dir", str(tmp_path), "--reply", "--create", "--max-attempts", "1")
    codec = ("--codec", "cloudevents") if kind == "queue" else ()
    cli("create", queue)
    with cli.running(*worker, *codec):
        assert cli("ask", queue, "book", "--timeout", "60").stdout == b'{"got": "book"}\n'
        assert cli("ask", queue, "plain\ntext ä", "--timeout", "60").stdout == "plain\ntext ä\n".encode()
        key = () if kind == "queue" else ("--key", "k")
        assert cli.json("ask", queue, "book", *key) == {"name": "prices", "reply": {"got": "book"}}
        failed = cli("ask", queue, "bad", "--timeout", "60", code=1)
        assert b"failed: ValueError: no such product" in failed.stderr
        if kind != "tasks":
            assert cli("ask", queue, "bytes", "--timeout", "60").stdout == b"\x00\xff\n"
            assert cli.json("ask", queue, "bytes") == {"name": "prices", "base64": "AP8="}
            assert b"--parse is for tasks" in cli("ask", queue, "{}", "--parse", code=2).stderr
        else:
            assert cli("ask", queue, '{"text": "a"}', "--parse").stdout == b'{"got": "a"}\n'


def test_nobody_replies(cli: Commands, tmp_path: Path) -> None:
    late = cli("ask", "events:prices", "book", "--timeout", "0.2", code=6)
    assert b"got no reply within 0.2 s" in late.stderr
    directory = f"files:{tmp_path / 'jobs'}"
    cli("create", directory)
    assert b"use an EventQueue or TaskQueue" in cli("ask", directory, "book", code=1).stderr
    assert cli("ask", "events:prices", "book", "--timeout", "0", code=2).stdout == b""
