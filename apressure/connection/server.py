"""From settings to connections: found, counted, and the server's version checked once.

A `Place` is where the keys of a queue are: the server, or the node of a cluster that has their slot at this moment.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Protocol

from apressure.connection import channel as channels
from apressure.connection import discovery
from apressure.connection.addresses import Address
from apressure.connection.channel import OnReply
from apressure.connection.command import NO_HEAD, Argument, Head
from apressure.connection.settings import Settings
from apressure.exceptions import (
    AuthenticationError,
    ConnectionLimitError,
    ServerError,
    ServerTooOldError,
    ServerUnavailableError,
)

OLDEST_VERSION = (6, 2)


class AnyChannel(Protocol):
    """What the rest of the package knows of a channel."""

    up: bool
    address: Address

    def call(self, command: Sequence[Argument], on_reply: OnReply, head: Head = NO_HEAD) -> None: ...

    def abort(self, reason: str) -> None: ...

    def retire(self) -> None: ...

    async def ask(self, *command: bytes | str | int) -> object: ...


class Server:
    """The server of a client.

    Args:
        settings: Where it is, and the limits of the client.

    Attributes:
        connections: How many connections are open or being opened.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.connections = 0
        self._met = False
        self._spare: list[Callable[[], bool]] = []
        self._resting: dict[Place, Callable[[], bool]] = {}
        self._discovery = discovery.of(settings)
        self._address = settings.address
        self._places: dict[int | None, Place] = {}

    @property
    def address(self) -> str:
        """Where the server is, for messages; without secrets."""
        return self._address.text

    def place_of(self, keys: Iterable[bytes]) -> Place:
        """Where these keys are.

        Raises:
            ValueError: The server is a cluster, and would spread the keys over several nodes.
        """
        slot = discovery.slot_of(self.settings.address, keys)
        if slot not in self._places:
            self._places[slot] = Place(self, self._discovery, slot)
        return self._places[slot]

    async def places(self) -> AsyncIterator[Place]:
        """Places that together are everywhere: one, or in a cluster one a node."""
        if isinstance(self._discovery, discovery.Cluster):
            for slot in (await self._discovery.primaries()).values():
                yield self._places.setdefault(slot, Place(self, self._discovery, slot))
        else:
            yield self.place_of(())

    def on_shortage(self, give_up_one: Callable[[], bool]) -> None:
        """Register somebody who may close a connection that is idle when the limit is reached."""
        self._spare.append(give_up_one)

    def forget(self, give_up_one: Callable[[], bool]) -> None:
        """Take that back."""
        if give_up_one in self._spare:
            self._spare.remove(give_up_one)

    def may_rest(self, place: Place, rest: Callable[[], bool]) -> None:
        """Register a connection for steps that may be closed while it is idle and a place elsewhere needs one."""
        self._resting[place] = rest

    async def connect(self, place: Place, on_lost: Callable[[], None], response_timeout: float) -> AnyChannel:
        """Open one connection; see `Place.connect`."""
        self._reserve(place)
        lost = False

        def release() -> None:
            nonlocal lost
            if not lost:
                lost = True
                self.connections -= 1
                on_lost()

        try:
            return await self._connect_retrying(place, release, response_timeout)
        except BaseException:
            if not lost:
                lost = True
                self.connections -= 1
            raise

    def _reserve(self, place: Place) -> None:
        limit = self.settings.max_connections
        if (
            limit is not None
            and self.connections >= limit
            and not any(spare() for spare in self._spare)
            and not any(rest() for other, rest in self._resting.items() if other is not place)
        ):
            raise ConnectionLimitError(
                f"all {limit} connections of this client are in use (max_connections={limit}); each queue that waits "
                "takes up to five: raise the limit, or let fewer queues wait at a time"
            )
        self.connections += 1

    async def _connect_retrying(self, place: Place, on_lost: Callable[[], None], response_timeout: float) -> AnyChannel:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.settings.retry_timeout
        pause = 0.05
        while True:
            try:
                return await self._connect(place, on_lost, response_timeout)
            except ServerUnavailableError as error:
                pause_now = pause * random.uniform(0.5, 1.5)
                if not self._met or loop.time() + pause_now > deadline:
                    if self._met and self.settings.retry_timeout:
                        raise ServerUnavailableError(
                            f"{error} (tried again for {self.settings.retry_timeout:g} seconds)"
                        ) from None
                    raise
                await asyncio.sleep(pause_now)
                pause = min(1.0, pause * 2)

    async def _connect(self, place: Place, on_lost: Callable[[], None], response_timeout: float) -> AnyChannel:
        if self.settings.fake is not None:
            from apressure.connection.fake import FakeChannel

            return FakeChannel(self.settings.fake, self.settings.address, on_lost)
        address = await place.locate()
        try:
            channel = await channels.connect(address, self.settings.connect_timeout, response_timeout, on_lost)
        except ServerUnavailableError as error:
            if not channels.no_room(error):  # who is connected shall stay so
                place.doubt(address)
            raise
        self._address = address
        try:
            async with asyncio.timeout(self.settings.connect_timeout):
                await self._greet(channel)
        except TimeoutError:
            channel.abort("the server did not answer")
            place.doubt(address)
            raise ServerUnavailableError(
                f"the server at {address.text} takes connections and does not answer "
                f"(for {self.settings.connect_timeout:g} seconds)"
            ) from None
        except ServerUnavailableError as error:
            if not channels.no_room(error):
                place.doubt(address)
            raise channels.unreachable(address, error) from None
        except BaseException:
            channel.abort("the connection was refused, or is not needed any more")
            raise
        return channel

    async def _greet(self, channel: channels.Channel) -> None:
        """See that the server answers, and takes us; the first time also which one it is."""
        try:
            answer = await channel.ask(*((b"PING",) if self._met else (b"INFO", b"server")))
        except AuthenticationError:
            raise  # later commands would say it less clearly
        except ServerError as error:
            if channels.FULL in str(error):
                raise ServerUnavailableError(str(error)) from None
            answer = b""  # a user with few rights may not ask; a missing command will tell
        if not self._met:
            self._check_version(bytes(answer))
            self._met = True

    def _check_version(self, information: bytes) -> None:
        version = re.search(rb"redis_version:(\d+)\.(\d+)", information)
        valkey = b"valkey_version:" in information
        if version and not valkey and (int(version[1]), int(version[2])) < OLDEST_VERSION:
            raise ServerTooOldError(
                f"the server at {self.address} is Redis {int(version[1])}.{int(version[2])}: "
                "apressure needs Redis 6.2 or later, or Valkey"
            )


class Place:
    """Where keys are: the server, or in a cluster the node that has their slot.

    Args:
        server: The server.
        found_by: How it is found.
        slot: The slot of the keys in a cluster.

    Attributes:
        server: The server.
    """

    def __init__(self, server: Server, found_by: discovery.Discovery, slot: int | None) -> None:
        self.server = server
        self._discovery = found_by
        self._slot = slot
        self._written = False
        self._doubts: dict[str, int] = {}

    @property
    def settings(self) -> Settings:
        """The client's settings."""
        return self.server.settings

    async def connect(self, on_lost: Callable[[], None], response_timeout: float | None = None) -> AnyChannel:
        """Open one connection.

        A server that answered before is tried again with growing pauses for `retry_timeout` seconds; one that never
        did fails at once, since it is more likely that the address is wrong.

        Raises:
            ConnectionLimitError: `max_connections` are in use.
            ServerUnavailableError: It cannot be reached.
            ServerError: It refuses the connection, or is too old.
        """
        return await self.server.connect(self, on_lost, response_timeout or self.settings.response_timeout)

    async def locate(self) -> Address:
        """Find out where to connect to."""
        return await self._discovery.locate(self._slot)

    def doubt(self, address: Address) -> None:
        """The server may not be any more where it was: ask before the next connection."""
        self._doubts[address.text] = self.doubts(address) + 1
        self._discovery.doubt(self._slot, address)

    def doubts(self, address: Address) -> int:
        """How often an address was doubted: a connection older than the last time may lead nowhere."""
        return self._doubts.get(address.text, 0)

    def written(self) -> None:
        """The server took a write: it was no replica then."""
        self._written = True

    def is_elsewhere(self, error: ServerError, address: Address) -> bool:
        """Whether the server at an address refused a command since the data is, or will be, somewhere else.

        Nothing was carried out; the command belongs on a new connection. A server that says READONLY to the first
        write is not what the address was meant for, though, unless there is somebody to ask for a better one.
        """
        if error.code == "MOVED" and self._slot is not None:
            host, _, port = str(error).split()[2].rpartition(":")
            self._discovery.moved(self._slot, (host or address.connection_options["host"], int(port)))
            return True
        if error.code == "UNBLOCKED" or (error.code == "READONLY" and (self._discovery.follows or self._written)):
            self.doubt(address)
            return True
        return False
