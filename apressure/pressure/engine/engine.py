"""What both engines share: the life of a queue object, and the roles that it holds itself.

An engine carries out a queue object's operations: `Scripted` with scripts, `Plain` with the specification's commands.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from apressure.concurrency import background
from apressure.connection.client import Client
from apressure.core.counts import Counts
from apressure.core.objects import Block, QueueObject
from apressure.exceptions import PressureError, QueueInUseError, Role
from apressure.pressure.engine.keys import Keys
from apressure.pressure.engine.waits import Waits

if TYPE_CHECKING:
    from apressure.pressure.leases.lease import Lease


T = TypeVar("T")


class RoleLease(Protocol):
    """A lease that this object has on a role."""

    def stop(self) -> None:
        """Stop renewing it."""

    async def end(self, error: PressureError) -> None:
        """Give back the role and the messages in flight; later operations raise the error."""


class Engine(QueueObject[Client, Block]):
    """The engine of one queue object.

    Args:
        client: The client whose connections it uses.
        keys: The queue's keys.
        name: The queue's name.
        owns_client: Close the client together with the queue object.

    Attributes:
        waits: The queue's waiters.
        counts: What the queue object has done so far.
    """

    waits: Waits
    counts: Counts
    _lease: Lease | None = None  # of `receive` and `receive_many`

    def __init__(self, client: Client, keys: Keys, name: str, owns_client: bool = False) -> None:
        super().__init__(client, owns_client, name)
        self.client = client
        self.keys = keys
        self._held: dict[Role, RoleLease | None] = {}  # the roles of this object's blocks, and their leases

    async def _give_back(self) -> None:
        if self._lease is not None and self._lease.active:
            with contextlib.suppress(PressureError):  # the lease expires all the same
                await self._lease.leave(hurry=True)

    def client_closed(self, error: PressureError) -> None:
        """Fail waiting operations, give back roles, and release connections, since the client is being closed."""
        leases = [lease for lease in self._held.values() if lease is not None]
        if self._lease is not None and self._lease.active:
            leases.append(self._lease)
        if self._lease is not None:
            self._lease.stop()
        for lease in leases:
            lease.stop()
            if self.client.on_its_loop:
                # Before the connections end: otherwise the role would stay taken until the lease expires.
                ending = background.start(lease.end(error), "giving back the role of a closed client")
                self.client.finish_before_close(ending)
        super().client_closed(error)

    @abstractmethod
    def get(self, max_items: int, timeout: float | None) -> Awaitable[Sequence[bytes]]:
        """Get one to max_items messages."""

    @abstractmethod
    async def give_back(self, messages: Sequence[bytes], first: int = 0, end: int | None = None) -> None:
        """Make `messages[first:end]` of what was got the first in line again. Statistics no longer count them."""

    @abstractmethod
    async def inspect(self) -> list[Any]:
        """Return everything that statistics show: see `lua/inspect.lua`."""

    def check(self, role: Role | None = None) -> None:
        """Raise where the client cannot be used, or would wait for a role that this object holds itself."""
        super().check()
        if role is not None and (self._held or self._lease is not None):
            self.check_own(role)
            if role == "consumer" and self._lease is not None and self._lease.state.unsettled:
                raise self._in_use(role, "settle what was received first")

    def check_own(self, role: Role) -> None:
        """Raise where a block of this object holds the role."""
        if role in self._held:
            raise self._in_use(role, "use the block's object, or end the block first")

    def _in_use(self, role: Role, advice: str) -> QueueInUseError:
        return QueueInUseError(
            f"this object holds the {role} role of the queue {self.name!r} itself: {advice}",
            name=self.name,
            role=role,
            holder=self.client.id,
        )

    def begin_block(self, role: Role) -> None:
        """Note that a block of this object begins, which will hold the role."""
        self.check(role)
        self._held[role] = None

    def end_block(self, role: Role) -> None:
        """Note that the block has given its role back."""
        self._held.pop(role, None)

    def hold(self, role: Role, lease: RoleLease | None) -> None:
        """Note the lease of a block: it ends with the client at the latest. None: the block ends it itself."""
        self._held[role] = lease
