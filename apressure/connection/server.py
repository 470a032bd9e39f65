"""The server of a client, and its nodes: finds them, connects to them, counts connections, checks the version once."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable
from typing import TypeVar

from apressure import exceptions as errors
from apressure.concurrency.awake import awake_timeout
from apressure.connection import discovery
from apressure.connection.addresses import Address
from apressure.connection.settings import RECONNECT_BACKOFF, RETRY_BACKOFF, Settings
from apressure.connection.wire.channel import FULL, Channel, RESPChannel, no_room
from apressure.connection.wire.replies import NOT_EXECUTED

logger = logging.getLogger("apressure")

T = TypeVar("T")

OLDEST_VERSION = (6, 2)


class Outages:
    """The servers that one client has lost and not reached since.

    Args:
        level: The level of the log lines.
    """

    def __init__(self, level: int = logging.INFO) -> None:
        self._level = level
        self._reached: set[str] = set()
        self._since: dict[str, float] = {}
        self._lost_by: dict[Hashable, str] = {}

    def lost(self, node: Hashable, address: Address, reason: str) -> None:
        """A connection was lost: this client did not end it.

        Args:
            node: The node that it was for. A failover may lead the next one to another address.
            address: Where the server was.
            reason: How the connection ended.
        """
        self._lost_by[node] = address.text
        if address.text not in self._since:
            self._since[address.text] = time.monotonic()
            self._log("connection_lost", address, "lost the connection to the server at %s: %s", error=reason)

    def connected(self, node: Hashable, address: Address) -> None:
        """A connection for a node was opened, the first one or one more."""
        if address.text not in self._reached:
            self._reached.add(address.text)
            self._log("connected", address, "connected to the server at %s")
        lost = {address.text, self._lost_by.pop(node, address.text)} & self._since.keys()
        if lost:
            seconds = time.monotonic() - min(self._since.pop(text) for text in lost)
            text = "connected to the server at %s again, %.1f seconds after the loss"
            self._log("reconnected", address, text, seconds=seconds)

    def _log(self, event: str, address: Address, text: str, **what: object) -> None:
        extra = {"event": event, "address": address.text, **what}
        logger.log(self._level, text, address.text, *what.values(), extra=extra)


class Server:
    """The server of a client.

    Args:
        settings: Where it is, and the limits of the client.
        outages: Logs lost connections; by default at INFO.

    Attributes:
        address: Where the server is, for messages; without secrets.
        connections: How many connections are open or being opened.
        reached: The server has answered at least once.
        outages: Logs lost connections.
        discovery: Finds it.
    """

    def __init__(self, settings: Settings, outages: Outages | None = None) -> None:
        self.settings = settings
        self.address = settings.address.text
        self.connections = 0
        self.reached = False
        self.outages = outages or Outages()
        self._reclaimers: dict[Callable[[], bool], Node | None] = {}
        self.discovery = discovery.discovery_for(settings)
        self._nodes: dict[int | None, Node] = {}

    def node_of(self, keys: Iterable[bytes]) -> Node:
        """Return the node of these keys.

        Raises:
            ValueError: The server is a cluster, and the keys are in several slots.
        """
        return self._node_with(discovery.slot_of(self.settings.address, keys))

    async def nodes(self) -> AsyncIterator[Node]:
        """Yield nodes that together have all keys: one, or every node of a cluster that has slots."""
        for slot in await self.discovery.slots():
            yield self._node_with(slot)

    def _node_with(self, slot: int | None) -> Node:
        if slot not in self._nodes:
            self._nodes[slot] = Node(self, slot)
        return self._nodes[slot]

    def add_reclaimer(self, close_idle: Callable[[], bool], node: Node | None = None) -> None:
        """Register a function that closes an idle connection when `max_connections` is reached.

        Args:
            close_idle: Closes one, and returns whether there was one to close.
            node: For the connection for steps at a node: it is closed last, and not for the sake of the same node.
        """
        self._reclaimers[close_idle] = node

    def remove_reclaimer(self, close_idle: Callable[[], bool]) -> None:
        """Undo `add_reclaimer`."""
        self._reclaimers.pop(close_idle, None)

    def reserve(self, node: Node) -> None:
        """Count one more connection.

        Raises:
            ConnectionLimitError: `max_connections` are in use, and none of them is idle.
        """
        limit = self.settings.max_connections
        if limit is not None and self.connections >= limit:
            reclaimers = sorted(self._reclaimers.items(), key=lambda entry: entry[1] is not None)
            if not any(close_idle() for close_idle, wanted_by in reclaimers if wanted_by is not node):
                raise errors.ConnectionLimitError(
                    f"all {limit} connections of this client are in use (max_connections={limit}); each queue that "
                    "waits needs up to five. Raise the limit, or wait on fewer queues at a time"
                )
        self.connections += 1

    async def open(self, address: Address, response_timeout: float) -> Channel:
        """Open a channel to an address, and check what is there: one try. Arguments and errors are as for `connect`."""
        settings, timeout = self.settings, self.settings.connect_timeout
        if settings.fake is not None:
            from apressure.connection.wire.fake import FakeredisChannel

            return FakeredisChannel(settings.fake, address)
        from apressure.connection.wire.connecting import connect, unreachable

        channel = await connect(address, timeout, response_timeout)
        self.address = address.text
        try:
            async with awake_timeout(timeout):
                await self.greet(channel)
        except BaseException as error:
            channel.abort("the connection was refused, or is no longer needed")
            if isinstance(error, errors.ServerUnavailableError):
                raise unreachable(address, error) from None
            if isinstance(error, TimeoutError):
                raise errors.ServerUnavailableError(
                    f"the server at {address.text} accepts connections but does not answer (within {timeout:g} seconds)"
                ) from None
            raise
        return channel

    async def greet(self, channel: RESPChannel) -> None:
        """Check that the server answers and accepts this client; the first time, its version too."""
        try:
            answer = await channel.ask(*((b"PING",) if self.reached else (b"INFO", b"server")))
        except errors.AuthenticationError:
            raise  # clearer than the error of a later command
        except errors.ServerError as error:
            if FULL in str(error):
                raise errors.ServerUnavailableError(str(error)) from None
            answer = b""  # the user may not run INFO; on an old server, the first missing command will raise
        if not self.reached:
            found = re.search(rb"redis_version:(\d+)\.(\d+)", answer)
            version = (int(found[1]), int(found[2])) if found and b"valkey_version:" not in answer else OLDEST_VERSION
            if version < OLDEST_VERSION:
                is_old = f"the server at {self.address} is Redis {version[0]}.{version[1]}"
                raise errors.ServerTooOldError(f"{is_old}: apressure needs Redis 6.2 or later, or Valkey")
            self.reached = True


class Node:
    """Where keys are: the server, or in a cluster the node that has their slot.

    Args:
        server: The server.
        slot: The slot of the keys in a cluster.

    Attributes:
        server: The server.
        settings: The client's settings.
        durability: What writes wait for here. "all" becomes a number as soon as the replicas were counted.
        written: The server has accepted a write, so it was no replica then.
    """

    def __init__(self, server: Server, slot: int | None) -> None:
        self.server = server
        self.settings = server.settings
        self.durability = server.settings.durability
        self._discovery = server.discovery
        self._slot = slot
        self.written = False
        self._invalidated: dict[str, float] = {}

    async def connect(self, response_timeout: float | None = None) -> Channel:
        """Open one connection.

        A server that answered before is tried again with growing pauses for `retry_timeout` seconds. A server that
        never answered fails at once: its address is probably wrong.

        Args:
            response_timeout: Seconds of silence that end the connection; the client's setting by default.

        Raises:
            ConnectionLimitError: `max_connections` are in use.
            ServerUnavailableError: It cannot be reached.
            ServerError: It refuses the connection, or is too old.
        """
        self.server.reserve(self)
        try:
            channel = await self._connect_with_retries(response_timeout or self.settings.response_timeout)
        except BaseException:
            self.server.connections -= 1
            raise
        self.server.outages.connected(self, channel.address)
        channel.on_end.append(lambda: self._ended(channel))
        if not channel.up:
            self._ended(channel)
        return channel

    def _ended(self, channel: Channel) -> None:
        self.server.connections -= 1
        if channel.lost:
            self.server.outages.lost(self, channel.address, channel.lost)

    async def _connect_with_retries(self, response_timeout: float) -> Channel:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.settings.retry_timeout
        failures = 0
        while True:
            address = None
            try:
                address = await self._discovery.locate(self._slot)
                return await self.server.open(address, response_timeout)
            except errors.ServerUnavailableError as error:
                if address is not None and not no_room(error):  # a full server has not moved
                    self.invalidate(address)
                pause = RECONNECT_BACKOFF.pause(failures)
                if not self.server.reached or not self.settings.retry_timeout:
                    raise
                if loop.time() + pause > deadline:
                    raise errors.ServerUnavailableError(
                        f"{error} (tried again for {self.settings.retry_timeout:g} seconds)"
                    ) from None
            failures += 1
            await asyncio.sleep(pause)

    async def ask(
        self,
        connected: Callable[[], Awaitable[Channel]],
        drop: Callable[[Channel], None],
        send: Callable[[Channel], Awaitable[T]],
        reads: bool = False,
    ) -> T:
        """Run a command, and again for up to `retry_timeout` seconds if the server says that it was not executed.

        Args:
            connected: Returns the channel to use, or opens one.
            drop: Called with a channel to a server that does not have the data, or no longer has it.
            send: Sends the command on a channel, and returns its reply.
            reads: It may run twice: send it again if its reply was lost, too.

        Raises:
            ServerError: The server refused it.
            ServerUnavailableError: It cannot be reached, or the connection ended first.
        """
        loop = asyncio.get_running_loop()
        until, failures = 0.0, 0
        while True:
            channel = await connected()
            try:
                return await send(channel)
            except (errors.ServerUnavailableError, errors.ServerError) as error:
                until = until or loop.time() + self.settings.retry_timeout
                if isinstance(error, errors.ServerUnavailableError):
                    self.invalidate(channel.address)
                    again = reads
                elif again := self.note_redirect(error, channel.address):
                    drop(channel)
                else:
                    again = error.code in NOT_EXECUTED
                if not again or loop.time() >= until:
                    raise
            await asyncio.sleep(RETRY_BACKOFF.pause(failures))
            failures += 1

    @property
    def replicas(self) -> int | None:
        """How many replicas must confirm a write; None where all must, and they have not been counted yet."""
        if self.durability is None:
            return 0
        return None if self.durability.replicas == "all" else self.durability.replicas

    def count(self, address: Address, connected: int) -> int:
        """Learn how many replicas a primary has, and return how many must confirm a write from now on.

        The number never falls: after a failover the old primary is missing, and it may come back.
        """
        assert self.durability is not None
        before = self.replicas or 0
        replicas = max(before, connected, self._discovery.replicas)
        if replicas > before:
            logger.info(
                "durability='all': %d replicas of %s must confirm each write (connected: %d, known to Sentinels: %d)",
                replicas, address.text, connected, self._discovery.replicas,
            )  # fmt: skip
            self.durability = dataclasses.replace(self.durability, replicas=replicas)
        return replicas

    @property
    def takes_writes(self) -> bool:
        """Steps are sent here. (A cluster's node without a slot is for looking at all nodes.)"""
        return self._slot is not None or not isinstance(self._discovery, discovery.Cluster)

    def invalidate(self, address: Address) -> None:
        """The server may have left this address: look it up again before the next connection."""
        self._invalidated[address.text] = asyncio.get_running_loop().time()
        self._discovery.invalidate(self._slot, address)

    def invalidated_at(self, address: Address) -> float:
        """When an address was last invalidated, by the event loop's clock. An older connection may be half-open."""
        return self._invalidated.get(address.text, 0.0)

    def note_redirect(self, error: errors.ServerError, address: Address) -> bool:
        """Note what an error says about where the data is now.

        Returns:
            Whether the server refused the command because the data is, or will be, on another server. The command was
            not executed, and belongs on a new connection. A server that answers READONLY to the first write is a wrong
            address instead, unless Sentinels or a cluster know a better one.
        """
        if error.code == "MOVED" and self._slot is not None:
            host, _, port = str(error).split()[2].rpartition(":")
            self._discovery.moved(self._slot, (host or address.connection_options["host"], int(port)))
            return True
        if error.code == "UNBLOCKED" or (error.code == "READONLY" and (self._discovery.follows or self.written)):
            self.invalidate(address)
            return True
        return False
