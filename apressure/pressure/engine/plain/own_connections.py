"""The connections that plain commands block on: one for each operation under way, kept for the next one."""

from __future__ import annotations

from apressure.connection.client import Client
from apressure.connection.waiting.waiter import SLICE
from apressure.connection.wire.channel import Channel
from apressure.connection.wire.reconnecting import ReconnectingConnection
from apressure.exceptions import ServerError


class OwnConnections:
    """The connections of one queue.

    Args:
        client: The client that they belong to.
        connection: Its connection for commands that do not block.

    Attributes:
        client, connection: As given.
    """

    def __init__(self, client: Client, connection: ReconnectingConnection) -> None:
        self.client = client
        self.connection = connection
        self._idle: list[Channel] = []
        self._numbers: dict[Channel, int] = {}
        self._released = False
        client.server.add_reclaimer(self._give_up_one)

    def number_of(self, channel: Channel) -> int:
        """Return the server's number of a connection, for CLIENT UNBLOCK."""
        return self._numbers[channel]

    async def take(self) -> Channel:
        """Return a connection for one operation, an idle one if there is one."""
        while self._idle:
            channel = self._idle.pop()
            if channel.up:
                return channel
            del self._numbers[channel]
        channel = await self.connection.node.connect(SLICE + self.client.settings.response_timeout)
        try:
            self._numbers[channel] = int(str(await channel.ask(b"CLIENT", b"ID")))
        except ServerError:
            channel.abort("the server did not say who this connection is")
            raise
        return channel

    def put_back(self, channel: Channel) -> None:
        """Keep the connection of an operation that has ended for the next one."""
        if channel.up and not self._released:
            self._idle.append(channel)
        else:
            self.drop(channel, "the queue object was closed")

    def drop(self, channel: Channel, reason: str) -> None:
        """Close a connection."""
        self._numbers.pop(channel, None)
        channel.abort(reason)

    def release(self) -> None:
        """Close the connections that no operation uses, and the others when their operations end."""
        self.client.server.remove_reclaimer(self._give_up_one)
        self._released = True
        while self._give_up_one():
            pass

    def _give_up_one(self) -> bool:
        if self._idle:
            self.drop(self._idle.pop(), "the connection is not needed any more")
            return True
        return False
