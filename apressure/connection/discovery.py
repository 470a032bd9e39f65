"""Where the server is at this moment: at its address, where the Sentinels say, or at the node that has a slot.

What Sentinels or a cluster have said is believed until somebody doubts it: a connection that broke, a node that sent a
command elsewhere, a primary that turned out to be a replica. Then they are asked again, once for all who want to know.
"""

from __future__ import annotations

import asyncio
import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Protocol

from apressure.connection import background
from apressure.connection import channel as channels
from apressure.connection.addresses import Address, Node
from apressure.connection.settings import Settings, resolve
from apressure.exceptions import (
    AuthenticationError,
    PressureError,
    ServerError,
    ServerTooOldError,
    ServerUnavailableError,
)


class Discovery(Protocol):
    """Finds the server.

    Attributes:
        follows: The server may be at another address later, and the same data with it.
    """

    follows: bool

    async def locate(self, slot: int | None) -> Address:
        """Return where the server is that has the slot (None: any server)."""

    def doubt(self, slot: int | None, address: Address) -> None:
        """The server is not at this address, or not any more."""

    def moved(self, slot: int, node: Node) -> None:
        """A node said that another one has the slot."""


class Fixed:
    """A server at an address that does not change. (What its name stands for may: names are resolved again.)"""

    follows = False

    def __init__(self, address: Address) -> None:
        self._address = address

    async def locate(self, slot: int | None) -> Address:  # noqa: ARG002
        return self._address

    def doubt(self, slot: int | None, address: Address) -> None:
        pass

    def moved(self, slot: int, node: Node) -> None:
        pass


class Embedded(Fixed):
    """The private server of this process, started by whoever needs it first."""

    def __init__(self, address: Address, directory: str | None) -> None:
        super().__init__(address)
        self._directory = directory

    async def locate(self, slot: int | None) -> Address:  # noqa: ARG002
        from apressure import embedded

        server = await asyncio.to_thread(embedded.shared, self._directory)
        self._address = resolve({"url": server.url}, {}).address
        return self._address


class _Asked(ABC):
    """A server that others know the address of: one question at a time, whoever waits for its answer."""

    follows = True

    def __init__(self, settings: Settings) -> None:
        self._address = settings.address
        self._timeout = settings.connect_timeout
        self._nodes = list(settings.address.nodes)
        self._asking: asyncio.Task[None] | None = None
        self._askers = 0
        self._failure: PressureError | None = None

    async def locate(self, slot: int | None) -> Address:
        asked = False
        while (address := self._known(slot)) is None:
            if asked:
                where = "is changing its place" if slot is None else f"has no node for the slot {slot} at present"
                raise ServerUnavailableError(f"{self._address.text} {where}")
            if self._asking is None or self._asking.done():
                self._asking = background.start(self._ask_all(), "asking where the server is")
            await self._answer_to(self._asking)
            if self._failure is not None:
                raise copy.copy(self._failure)
            asked = True
        return address

    async def _answer_to(self, asking: asyncio.Task[None]) -> None:
        self._askers += 1
        try:
            await asyncio.wait((asking,))
        finally:
            self._askers -= 1
            if not self._askers and not asking.done():  # nobody wants to know any more
                self._asking = None
                asking.cancel()

    async def _ask_all(self) -> None:
        """Ask one node after the other; who answered is asked first the next time."""
        failures = []
        self._failure = None
        for node in list(self._nodes):
            try:
                await self._ask(node)
            except PressureError as error:
                failures.append(error)
            else:
                if node in self._nodes:
                    self._nodes.remove(node)
                self._nodes.insert(0, node)
                return
        refusals = [error for error in failures if isinstance(error, ServerError)]
        if refusals and len(refusals) == len(failures):
            self._failure = refusals[0]  # all are up, and none lets us ask
        else:
            reasons = "; ".join(dict.fromkeys(map(str, failures)))
            self._failure = ServerUnavailableError(f"cannot find {self._address.text}: {reasons}")

    @abstractmethod
    def _known(self, slot: int | None) -> Address | None:
        """What was said last, if nobody doubts it."""

    @abstractmethod
    async def _ask(self, node: Node) -> None:
        """Ask one node, and learn from its answer."""

    async def _question(self, address: Address, *command: bytes | str | int) -> Any:
        channel = await channels.connect(address, self._timeout, self._timeout, lambda: None)
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

    def doubt(self, slot: int | None, address: Address) -> None:  # noqa: ARG002
        if self._primary == address:
            self._primary = None

    def moved(self, slot: int, node: Node) -> None:
        pass

    def _known(self, slot: int | None) -> Address | None:  # noqa: ARG002
        return self._primary

    async def _ask(self, node: Node) -> None:
        try:
            place = await self._question(
                self._address.sentinel_at(*node), b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", self._service
            )
        except ServerTooOldError:
            raise ServerError(f"the server at {node[0]}:{node[1]} is no Sentinel") from None
        except AuthenticationError as error:
            raise AuthenticationError(
                f"the Sentinel at {node[0]}:{node[1]} wants other credentials: give sentinel_password= "
                f"(and sentinel_username=), or the same in the URL's query ({error.code})",
                code=error.code,
            ) from None
        if place is None:
            raise ServerUnavailableError(f"the Sentinel at {node[0]}:{node[1]} knows no {self._service!r}")
        primary = self._address.at(place[0].decode(), int(place[1]))
        # A Sentinel that was cut off may name one that has been replaced meanwhile (Sentinel clients, step 3).
        try:
            role = (await self._question(primary, b"ROLE"))[0]
        except ServerError:
            role = b"master"  # a user with few rights may not ask
        if role != b"master":
            raise ServerUnavailableError(
                f"{primary.text}, which the Sentinel at {node[0]}:{node[1]} named, is a replica"
            )
        self._primary = primary


class Cluster(_Asked):
    """The nodes of a cluster, by the slots that they have."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._startup = settings.address.nodes
        self._slots: dict[int, Address] = {}
        self._stale = True

    def doubt(self, slot: int | None, address: Address) -> None:
        if slot is None or self._slots.get(slot) == address:
            self._stale = True

    def moved(self, slot: int, node: Node) -> None:
        self._slots[slot] = self._address.at(*node)

    def _known(self, slot: int | None) -> Address | None:
        if self._stale:
            return None
        # Any node will do: the one that has just answered.
        return self._address.at(*self._nodes[0]) if slot is None else self._slots.get(slot)

    async def _ask(self, node: Node) -> None:
        try:
            ranges = await self._question(self._address.at(*node), b"CLUSTER", b"SLOTS")
        except ServerError as error:
            if "cluster support disabled" not in str(error):
                raise
            raise ServerError(
                f"the server at {node[0]}:{node[1]} is no node of a cluster: use redis://", code=error.code
            ) from None
        slots: dict[int, Address] = {}
        found: dict[Node, Address] = {}
        for first, last, primary, *_ in ranges:
            place = ((primary[0] or b"").decode() or node[0], int(primary[1]))  # no name: the one that was asked
            address = found.setdefault(place, self._address.at(*place))
            slots.update(dict.fromkeys(range(first, last + 1), address))
        if not slots:
            raise ServerUnavailableError(f"the node {node[0]}:{node[1]} knows of no slots")
        self._slots, self._stale = slots, False
        self._nodes = [*found, *(place for place in self._startup if place not in found)]

    async def primaries(self) -> dict[Node, int]:
        """Every node that has slots, with one of them."""
        await self.locate(None)
        return {
            (address.connection_options["host"], address.connection_options["port"]): slot
            for slot, address in self._slots.items()
        }


def slot_of(address: Address, keys: Iterable[bytes]) -> int | None:
    """The slot of the cluster that has these keys; None where there are none, and for all other servers.

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
            "braces, as in '{jobs}', or the prefix, as in prefix='{app}'; what is in the first braces of a key "
            "decides where it goes"
        )
    return slots.pop() if slots else None


def of(settings: Settings) -> Discovery:
    """How the server of these settings is found."""
    if settings.embedded:
        return Embedded(settings.address, settings.embedded_directory)
    if settings.address.service is not None:
        return Sentinels(settings)
    if settings.address.nodes:
        return Cluster(settings)
    return Fixed(settings.address)
