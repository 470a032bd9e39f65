"""What the server is told: addresses, limits, TLS and the password, checked, no I/O."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from apressure import validation
from apressure.connection.settings import Durability
from apressure.events.server.wire import MIB, Limits

DEFAULT_PORT = 4777


@dataclasses.dataclass(frozen=True, slots=True)
class Address:
    """Where the server listens.

    Attributes:
        host: A name or an IP address; "" for all interfaces.
        port: The port; 0 for a free one.
    """

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read `host:port`, `[::1]:port`, `host`, or `:port` for all interfaces.

        Raises:
            ValueError: It is none of these.
        """
        found = re.fullmatch(r"(\[[^\[\]]*\]|[^\[\]:]*)(?::([0-9]*))?", text.strip())
        host, port = found.groups("") if found else ("", "")
        if not (host or port) or int(port or DEFAULT_PORT) > 65535:
            raise ValueError(f"the address to listen on must be host:port or :port, not {text!r}")
        return cls(host.strip("[]"), int(port or DEFAULT_PORT))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclasses.dataclass(frozen=True, slots=True)
class Tls:
    """The certificate of the listener.

    Attributes:
        certificate: A PEM file with the certificate and its chain.
        key: A PEM file with the private key; None if it is in the certificate's file.
        client_ca: A PEM file with the authorities of clients' certificates. With it, clients need a certificate.
    """

    certificate: Path
    key: Path | None = None
    client_ca: Path | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What clients may use. None of the times is a limit if it is 0.

    Attributes:
        connections: How many clients may be connected.
        pipeline: How many commands of one client may wait behind the one that runs. The server reads no further
            then; a client that waits for events at that moment is disconnected.
        output: Bytes of replies that one client has not read. A client with more is disconnected.
        idle: Seconds without a command, after which a client is disconnected.
        stalled: Seconds after which a client that reads none of its replies is disconnected.
        wire: The limits of a command.
    """

    connections: int = 10_000
    pipeline: int = 1_000
    output: int = 256 * MIB
    idle: float = 0.0
    stalled: float = 60.0
    wire: Limits = dataclasses.field(default_factory=Limits)

    def __post_init__(self) -> None:
        for name in ("connections", "pipeline", "output"):
            validation.whole(getattr(self, name), name)
        for name in ("idle", "stalled"):
            validation.seconds(getattr(self, name), name)


@dataclasses.dataclass(frozen=True, slots=True)
class ServerSettings:
    """Everything that the server is told.

    Attributes:
        listen: Where to listen.
        url: The Redis or Valkey server, as `Client` takes it.
        password: What clients must send with AUTH; None: nothing. It is not in the object's text.
        tls: The listener's certificate; None: no TLS.
        limits: What clients may use.
        workers: How many NOBLOCK pushes may be under way (okq's `--bg-push-pool-size`).
        drain: Seconds that commands under way have when the server stops.
        durability: What Redis must confirm before a client gets its reply, in addition to carrying the command out.
    """

    listen: Address = Address("127.0.0.1", DEFAULT_PORT)
    url: str = "redis://127.0.0.1:6379"
    password: str | None = dataclasses.field(default=None, repr=False)
    tls: Tls | None = None
    limits: ConnectionLimits = dataclasses.field(default_factory=ConnectionLimits)
    workers: int = 128
    drain: float = 10.0
    durability: Durability | None = None

    def __post_init__(self) -> None:
        validation.whole(self.workers, "workers", 0)
        validation.seconds(self.drain, "drain")
        if self.password == "":
            raise ValueError("the password is empty. Leave it out, or give one")


def redis_url(address: str, *, cluster: bool = False) -> str:
    """Return the URL of what okq's `--redis-addr` and `--redis-cluster` say. URLs of ours are taken as they are.

    Raises:
        ValueError: The address is empty, or the URL contradicts `cluster`.
    """
    if not address:
        raise ValueError("the address of Redis is empty. Give host:port or a URL")
    if "://" not in address:
        scheme = "redis+cluster" if cluster else "redis"
        return f"{scheme}://" + ",".join(
            f"127.0.0.1{one}" if one.startswith(":") else one for one in address.split(",")
        )
    if cluster and address.startswith("redis://"):
        return "redis+cluster://" + address.removeprefix("redis://")
    if cluster and not address.startswith("redis+cluster://"):
        raise ValueError("--redis-cluster is for host:port and redis://. Give a redis+cluster:// URL instead")
    return address
