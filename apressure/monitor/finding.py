"""Finds queues of every kind: those that patterns match, on a server or in a directory."""

from __future__ import annotations

import asyncio
import fnmatch
from pathlib import Path
from typing import Any, Self

from apressure import opening, queue_addresses
from apressure.connection.client import Client
from apressure.connection.settings import settings_from
from apressure.events.remote.address import is_okq, settings_of
from apressure.exceptions import PermissionDeniedError
from apressure.queue_addresses import QueueAddress


class Finder:
    """Finds and opens queues. Those of one server share a client, which ends with the block.

    Args:
        url: The server of addresses that name none; None for the environment's.
        prefix: The prefix of all keys of AsyncQueues; None for the environment's.
        share: The part of the time in which it may scan a server's keys; 1 for no pauses in between.
    """

    def __init__(self, url: str | None = None, prefix: str | None = None, share: float = 1.0) -> None:
        self._url = url
        self._prefix = prefix
        self._share = share
        self._clients: dict[str | None, Client] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self._clients.values():
            await client.aclose()

    @property
    def servers(self) -> list[str]:
        """The servers that it has a client of, without passwords."""
        return [str(client.server.address) for client in self._clients.values()]

    def read(self, address: str) -> QueueAddress:
        """Return what an address says.

        Raises:
            TypeError, ValueError: It is not an address.
        """
        return queue_addresses.lasting(queue_addresses.read(address, url=self._url))

    def read_pattern(self, pattern: str) -> list[QueueAddress]:
        """Return what a pattern may mean: one address for each kind, with the pattern as its name.

        Raises:
            TypeError, ValueError: It is not an address, or about an okq server, which does not list its queues.
        """
        possible = list(map(queue_addresses.lasting, queue_addresses.read_pattern(pattern, self._url)))
        if any(is_okq(address.url) for address in possible):
            raise ValueError(
                "an okq server does not list its queues: give the URL of its Redis (redis://…), or name each queue"
            )
        return possible

    async def find(self, pattern: str) -> list[QueueAddress]:
        """Return the addresses of the queues whose names match, such as `orders*`, `events:*` or `files:spool/*`.

        Without a kind in front, queues of every kind on the server count. This scans all keys of the server.

        Raises:
            TypeError, ValueError: As for `read_pattern`.
            PressureError, OSError: The server or the directory cannot be read.
        """
        possible, found = self.read_pattern(pattern), []
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
            return opening.make(address, {"codec": "raw"})
        return opening.make(address._replace(url=None), {"client": self._client(address.url), "codec": "raw"})

    def may_be_hidden(self, error: Exception, address: QueueAddress, pattern: str) -> bool:
        """Whether this user may not look at a queue of a kind that nobody has asked for.

        Args:
            error: What the look has raised.
            address: The queue.
            pattern: The pattern that it matches.
        """
        hidden = isinstance(error, PermissionDeniedError) and address.kind != "queue"
        return hidden and len(self.read_pattern(pattern)) > 1

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
            self._clients[url] = Client(url, prefix=self._prefix)
            self._clients[url].scan_share = self._share
            self._clients[url].check()  # it belongs to this event loop, so that it is closed
        return self._clients[url]


def server_at(url: str) -> str:
    """Return where a URL leads, without secrets.

    Raises:
        TypeError, ValueError: It is none of a server.
    """
    return (settings_of if is_okq(url) else settings_from)({"url": url}).address.text


def bare_name(address: QueueAddress) -> str:
    """Return the name of a queue alone, without the directory that it is in."""
    return Path(address.name).name if address.kind == "files" else address.name


def _directories(parent: Path) -> list[str]:
    return sorted(each.name for each in parent.iterdir() if each.is_dir())
