"""Finds queues of every kind: those that patterns match, on a server or in a directory."""

from __future__ import annotations

import asyncio
import fnmatch
from pathlib import Path
from typing import Any, Self

from apressure import opening
from apressure.cli.asking import bare_name
from apressure.cli.exits import UsageError
from apressure.cli.options import Common
from apressure.connection.client import Client
from apressure.events.remote.address import is_okq
from apressure.exceptions import PermissionDeniedError
from apressure.queue_addresses import QueueAddress


class Finder:
    """Finds and opens queues. Those of one server share a client, which ends with the block.

    Args:
        common: The options of all commands.
    """

    def __init__(self, common: Common) -> None:
        self._common = common
        self._clients: dict[str | None, Client] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self._clients.values():
            await client.aclose()

    def read(self, pattern: str) -> list[QueueAddress]:
        """Return what a pattern may mean: one address for each kind, with the pattern as its name.

        Raises:
            UsageError: The pattern is about an okq server, which does not list its queues.
            ValueError: The pattern is not an address.
        """
        possible = self._common.read_pattern(pattern)
        if any(is_okq(address.url) for address in possible):
            raise UsageError(
                "an okq server does not list its queues: give the URL of its Redis (redis://…), or name each queue"
            )
        return possible

    async def find(self, pattern: str) -> list[QueueAddress]:
        """Return the addresses of the queues whose names match, such as `orders*`, `events:*` or `files:spool/*`.

        Without a kind in front, queues of every kind on the server count. This scans all keys of the server.

        Raises:
            UsageError, ValueError: As for `read`.
            PressureError, OSError: The server or the directory cannot be read.
        """
        possible, found = self.read(pattern), []
        for address in possible:
            for name in fnmatch.filter(await self._names(address, alone=len(possible) == 1), bare_name(address)):
                whole = str(Path(address.name).parent / name) if address.kind == "files" else name
                found.append(address._replace(name=whole))
        return found

    def open(self, address: QueueAddress) -> Any:
        """Return a queue, which may be closed earlier than its client.

        Raises:
            ValueError: It has no name of a queue.
        """
        if address.kind == "files" or is_okq(address.url):
            return self._common.open(address)
        return opening.make(address._replace(url=None), {"client": self._client(address.url), "codec": "raw"})

    def may_be_hidden(self, error: Exception, address: QueueAddress, pattern: str) -> bool:
        """Whether this user may not look at a queue of a kind that nobody has asked for.

        Args:
            error: What the look has raised.
            address: The queue.
            pattern: The pattern that it matches.
        """
        return isinstance(error, PermissionDeniedError) and address.kind != "queue" and len(self.read(pattern)) > 1

    async def _names(self, address: QueueAddress, *, alone: bool) -> list[str]:
        """Return the names of the queues of a kind that are there. `alone`: no other kind is asked for."""
        if address.kind == "files":
            return await asyncio.to_thread(_directories, Path(address.name).parent)
        client = self._client(address.url)
        if address.kind == "queue":
            return await client.queues()
        if address.kind == "events":
            from apressure.events.engine.steps import active_queues

            return await active_queues(client, created=True)
        from apressure.tasks.engine.steps import queue_names
        from apressure.tasks.options import refuse_unfit

        try:
            refuse_unfit(client)
            return await queue_names(client)
        except (ValueError, PermissionDeniedError):  # a cluster has none, and a user of AsyncQueues need not see them
            if alone:
                raise
            return []

    def _client(self, url: str | None) -> Client:
        if url not in self._clients:
            self._clients[url] = self._common.client(url)
            self._clients[url].check()  # it belongs to this event loop, so that it is closed
        return self._clients[url]


def _directories(parent: Path) -> list[str]:
    return sorted(each.name for each in parent.iterdir() if each.is_dir())
