"""Finds the current address of a server: fixed, from Sentinels, or of the cluster node that has a slot.

The answer of Sentinels or a cluster is cached until it is invalidated: by a connection that broke, a node that
redirected a command, or a primary that turned out to be a replica. Then they are asked again, once for all tasks.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from apressure import exceptions as errors
from apressure.concurrency import background
from apressure.connection.addresses import Address, Node
from apressure.connection.settings import Settings, settings_from


class Discovery:
    """Finds the server; this one is at a fixed address. (The host's name is resolved for each connection.)

    Attributes:
        follows: The server and its data may move to another address.
        replicas: How many replicas the Sentinels know, including those that are down; 0 without Sentinels.
    """

    follows = False
    replicas = 0

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._address = settings.address

    async def locate(self, slot: int | None) -> Address:  # noqa: ARG002
        """Return the address of the server that has the slot (None: of any server)."""
        return self._address

    def invalidate(self, slot: int | None, address: Address) -> None:
        """Forget that the server is at this address: it has left it, or has never been there."""

    def moved(self, slot: int, node: Node) -> None:
        """A node answered that another one has the slot."""

    async def slots(self) -> list[int | None]:
        """Return one slot of every node that has slots; None for servers that are no cluster."""
        return [None]


class Embedded(Discovery):
    """The private server of this process; the first connection starts it."""

    async def locate(self, slot: int | None) -> Address:  # noqa: ARG002
        from apressure import embedded

        server = await asyncio.to_thread(embedded.shared, self._settings.embedded_directory)
        return settings_from({"url": server.url}, {}).address


class _Asked(Discovery, ABC):
    """A server whose address others know: one question at a time, and all tasks wait for its answer."""

    follows = True

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._nodes = list(settings.address.nodes)
        self._asking = background.Shared(self._ask_all, "asking where the server is")

    async def locate(self, slot: int | None) -> Address:
        if (address := self._known(slot)) is None:
            await self._asking.wait()
            if (address := self._known(slot)) is None:
                lack = "is moving to another address" if slot is None else f"has no node for the slot {slot} at present"
                raise errors.ServerUnavailableError(f"{self._address.text} {lack}")
        return address

    async def _ask_all(self) -> None:
        """Ask the nodes in turn, until one answers. That one is first the next time."""
        failures = []
        for node in list(self._nodes):
            try:
                await self._ask(node)
            except errors.PressureError as error:
                failures.append(error)
            else:
                self._nodes = [node, *(other for other in self._nodes if other != node)]
                return
        refusals = [error for error in failures if isinstance(error, errors.ServerError)]
        if refusals and len(refusals) == len(failures):
            raise refusals[0]  # all are up, and all refuse
        reasons = "; ".join(dict.fromkeys(map(str, failures)))
        raise errors.ServerUnavailableError(f"cannot find {self._address.text}: {reasons}")

    @abstractmethod
    def _known(self, slot: int | None) -> Address | None:
        """Return the cached address, if it is valid."""

    @abstractmethod
    async def _ask(self, node: Node) -> None:
        """Ask one node, and cache its answer."""

    async def _question(self, address: Address, *command: bytes | str | int) -> Any:
        from apressure.connection.wire.connecting import connect

        channel = await connect(address, self._settings.connect_timeout, self._settings.connect_timeout)
        try:
            return await channel.ask(*command)
        finally:
            channel.abort("the question was answered")


class Sentinels(_Asked):
    """The primary of a service that Sentinels watch."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        assert settings.address.service is not None
        self._service = settings.address.service
        self._primary: Address | None = None

    def invalidate(self, slot: int | None, address: Address) -> None:  # noqa: ARG002
        if self._primary == address:
            self._primary = None

    def _known(self, slot: int | None) -> Address | None:  # noqa: ARG002
        return self._primary

    async def _ask(self, node: Node) -> None:
        sentinel = self._address.sentinel_at(*node)
        try:
            place = await self._question(sentinel, b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", self._service)
        except errors.ServerTooOldError:
            raise errors.ServerError(f"the server at {sentinel.text} is not a Sentinel. Use redis://") from None
        except errors.AuthenticationError as error:
            raise errors.AuthenticationError(
                f"the Sentinel at {sentinel.text} refused the credentials ({error.code}). Give sentinel_password= "
                "(and sentinel_username=), or the same in the URL's query",
                code=error.code,
            ) from None
        if place is None:
            raise errors.ServerUnavailableError(f"the Sentinel at {sentinel.text} does not know {self._service!r}")
        primary = self._address.at(place[0].decode(), int(place[1]))
        # A Sentinel that was cut off may name a primary that has been replaced (Sentinel clients, step 3).
        try:
            role = (await self._question(primary, b"ROLE"))[0]
        except errors.ServerError:
            role = b"master"  # the user may not run ROLE
        if role != b"master":
            raise errors.ServerUnavailableError(
                f"{primary.text}, which the Sentinel at {sentinel.text} named, is a replica"
            )
        if self._settings.durability is not None and self._settings.durability.replicas == "all":
            replicas = await self._question(sentinel, b"SENTINEL", b"REPLICAS", self._service)
            self.replicas = max(self.replicas, len(replicas))
        self._primary = primary


class Cluster(_Asked):
    """The nodes of a cluster, by their slots."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._slots: dict[int, Address] = {}
        self._stale = True

    def invalidate(self, slot: int | None, address: Address) -> None:
        if slot is None or self._slots.get(slot) == address:
            self._stale = True

    def moved(self, slot: int, node: Node) -> None:
        self._slots[slot] = self._address.at(*node)

    def _known(self, slot: int | None) -> Address | None:
        if self._stale:
            return None
        # Any node will do: this one has just answered.
        return self._address.at(*self._nodes[0]) if slot is None else self._slots.get(slot)

    async def _ask(self, node: Node) -> None:
        try:
            ranges = await self._question(self._address.at(*node), b"CLUSTER", b"SLOTS")
        except errors.ServerError as error:
            if "cluster support disabled" not in str(error):
                raise
            raise errors.ServerError(
                f"the server at {node[0]}:{node[1]} is not a node of a cluster. Use redis://", code=error.code
            ) from None
        slots: dict[int, Address] = {}
        found: dict[Node, Address] = {}
        for first, last, primary, *_ in ranges:
            place = ((primary[0] or b"").decode() or node[0], int(primary[1]))  # no name: the node that was asked
            address = found.setdefault(place, self._address.at(*place))
            slots.update(dict.fromkeys(range(first, last + 1), address))
        if not slots:
            raise errors.ServerUnavailableError(f"the node {node[0]}:{node[1]} does not know the slots of its cluster")
        self._slots, self._stale = slots, False
        self._nodes = [*found, *(place for place in self._address.nodes if place not in found)]

    async def slots(self) -> list[int | None]:
        await self.locate(None)
        return list({address.text: slot for slot, address in self._slots.items()}.values())


def slot_of(address: Address, keys: Iterable[bytes]) -> int | None:
    """Return the cluster slot of these keys; None without keys, and for servers that are no cluster.

    Raises:
        ValueError: They are in several slots.
    """
    if address.service is not None or not address.nodes:
        return None
    from redis.crc import key_slot

    slots = {key_slot(key) for key in keys}
    if len(slots) > 1:
        raise ValueError(
            "a cluster would spread the keys of this queue over several nodes: put (a part of) its name into "
            "braces, as in '{jobs}', or the prefix, as in prefix='{app}'. The text in the first braces of a key "
            "decides its node"
        )
    return slots.pop() if slots else None


def discovery_for(settings: Settings) -> Discovery:
    """Return the discovery of the server of these settings."""
    if settings.embedded:
        return Embedded(settings)
    if settings.address.service is not None:
        return Sentinels(settings)
    return Cluster(settings) if settings.address.nodes else Discovery(settings)
