"""Listens to channels (SUBSCRIBE): one connection of its own, for any number of channels."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from apressure.concurrency.backoff import pause_until
from apressure.connection.server import Node
from apressure.connection.settings import RECONNECT_BACKOFF
from apressure.connection.wire.channel import RESPChannel, reply_of
from apressure.exceptions import PressureError

logger = logging.getLogger("apressure")

PING: Final = 5.0
"""Seconds between two signs of life, so that a half-open connection is noticed."""


class Subscriber:
    """Listens to channels, and connects again when the connection is lost.

    In a cluster it listens at one node, since each node passes messages on to all others.

    Args:
        node: The server.
        on_message: Called with the channel of each message.
        on_gap: Called when messages may have been missed: after each connection, once all channels are subscribed.
    """

    def __init__(self, node: Node, on_message: Callable[[bytes], None], on_gap: Callable[[], None]) -> None:
        self._node = node
        self._on_message = on_message
        self._on_gap = on_gap
        self._channels: set[bytes] = set()
        self._confirmed: set[bytes] = set()  # those that the current connection listens to
        self._connection: RESPChannel | None = None
        self._wanted = asyncio.Event()

    async def subscribe(self, channel: bytes) -> None:
        """Listen to a channel. On return no later message is missed; without a connection, `on_gap` will be called.

        Cancelled, it listens or not; `unsubscribe` is allowed in either case.
        """
        if channel in self._confirmed:
            return
        self._channels.add(channel)
        self._wanted.set()
        if self._connection is not None:
            try:
                await reply_of(self._connection, (b"SUBSCRIBE", channel))
                self._confirmed.add(channel)
            except PressureError as error:  # `run` connects again, and subscribes to this one, too
                logger.debug("SUBSCRIBE failed: %s", error)
                if self._connection is not None:
                    self._connection.abort("SUBSCRIBE failed")

    def unsubscribe(self, channel: bytes) -> None:
        """Listen to a channel no more. Messages that are under way may still come."""
        if channel in self._channels:
            self._channels.remove(channel)
            self._confirmed.discard(channel)
            if self._connection is not None:
                self._connection.call((b"UNSUBSCRIBE", channel), lambda _: None)

    async def run(self) -> None:
        """Keep the connection, from the first channel on. It ends when it is cancelled."""
        failures = 0
        while True:
            await self._wanted.wait()
            try:
                await self._listen()
                failures = 0
            except PressureError as error:
                logger.warning("cannot listen for events (it is tried again): %s", error)
            await asyncio.sleep(RECONNECT_BACKOFF.pause(failures))
            failures += 1

    async def _listen(self) -> None:
        """Listen until the connection is lost."""
        channel = await self._node.connect()
        assert isinstance(channel, RESPChannel)
        ended = asyncio.Event()
        channel.on_message = self._on_message
        channel.on_end.append(ended.set)
        self._connection = channel
        try:
            while missing := self._channels - self._confirmed:
                await asyncio.gather(*(reply_of(channel, (b"SUBSCRIBE", one)) for one in missing))
                self._confirmed |= missing & self._channels
            self._on_gap()
            while channel.up:
                await reply_of(channel, (b"PING",))
                await pause_until(ended, PING)
        finally:
            self._connection = None
            self._confirmed.clear()
            self._node.invalidate(channel.address)
            channel.abort("nobody listens any more")
