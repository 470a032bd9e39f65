"""Every verb of `VERBS` does the same on every kind of queue."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from apressure import AsyncQueue, QueueDoesNotExistError
from apressure.embedded import EmbeddedServer
from apressure.events.engine import waits
from apressure.events.remote import notices
from apressure.testing.contract import (
    ArgumentContract,
    CancellationContract,
    DeadlineContract,
    EndContract,
    Opener,
    VerbContract,
)
from tests.contract.matrix import KINDS, SERVERLESS, Maker
from tests.integration.events.remote.conftest import serving


@pytest.fixture
def server(valkey: EmbeddedServer) -> EmbeddedServer:
    """One server: the matrix is about kinds of queue, and other tests are about servers."""
    return valkey


class TestMatrix(VerbContract, ArgumentContract, DeadlineContract, CancellationContract, EndContract):
    """`test_contract` and `test_remote` have the rest of `WholeContract`, on more servers."""

    same_words = True

    @pytest.fixture(params=KINDS)
    async def open_queue(
        self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> AsyncIterator[Opener]:
        for module in (waits, notices):  # what nobody tells of is seen after so many seconds
            monkeypatch.setattr(module, "SLICE", 1)
        kind: str = request.param
        url = "" if kind in SERVERLESS else request.getfixturevalue("url")
        async with contextlib.AsyncExitStack() as stack:
            remote = kind == "RemoteEventQueue"
            make = Maker(kind, await stack.enter_async_context(serving(url)) if remote else url, tmp_path)
            opened = 0

            async def open_queue(**options: Any) -> Any:
                nonlocal opened
                opened += 1
                # What one client does through the okq server, another one does to the keys that the server works on.
                where = {"url": url} if remote and opened % 2 == 0 else {}
                return await stack.enter_async_context(make(**where, **options))

            yield open_queue
            if kind in SERVERLESS:
                return
            direct = {"url": url} if remote else {}
            dead = AsyncQueue("jobs:dead", url=url)
            for queue in (await stack.enter_async_context(make(**direct)), await stack.enter_async_context(dead)):
                with contextlib.suppress(QueueDoesNotExistError):
                    await queue.delete()
