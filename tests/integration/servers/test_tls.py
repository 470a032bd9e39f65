"""TLS on a server that speaks it itself, with certificates made for the test."""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from apressure import AsyncQueue, ServerUnavailableError
from apressure.embedded import EmbeddedServer
from tests import processes
from tests.integration.conftest import blocked, fails, in_time, renewed_while_blocked
from tests.servers import admin

Make = Callable[..., EmbeddedServer]

SERVERS = ("redis",)
"""Debian's server speaks TLS. The Valkey that comes as a wheel is built without."""


class Authority:
    """An authority that signs certificates, by openssl."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name
        self.certificate = folder / f"{name}.pem"
        self._key = self._openssl_key(name)
        openssl("req", "-x509", "-new", "-key", self._key, "-subj", f"/CN={name}", "-days", "2",
                "-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign,cRLSign",
                "-out", self.certificate)  # fmt: skip

    def sign(self, name: str, names: str = "DNS:localhost,IP:127.0.0.1") -> tuple[Path, Path]:
        """A certificate for a host's names, and its key."""
        key, request, certificate = self._openssl_key(name), self.folder / f"{name}.csr", self.folder / f"{name}.pem"
        extensions = self.folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName={names}\nauthorityKeyIdentifier=keyid\n")
        openssl("req", "-new", "-key", key, "-subj", f"/CN={name}", "-out", request)
        openssl("x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self._key, "-CAcreateserial",
                "-days", "2", "-extfile", extensions, "-out", certificate)  # fmt: skip
        return certificate, key

    def _openssl_key(self, name: str) -> Path:
        key = self.folder / f"{name}.key"
        openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", key)
        return key


def openssl(*arguments: object) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl (not installed: apt-get install openssl)")
    processes.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"), "authority")


class Secure:
    """A server with a port for TLS."""

    def __init__(self, make_server: Make, kind: str, authority: Authority, clients: str, **names: str) -> None:
        certificate, key = authority.sign(f"server-{kind}", **names)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        try:
            self.server = make_server(
                kind,
                config={
                    "tls-port": self.port,
                    "tls-cert-file": certificate,
                    "tls-key-file": key,
                    "tls-ca-cert-file": authority.certificate,
                    "tls-auth-clients": clients,
                },
            )
        except ServerUnavailableError as error:
            if "TLS" not in str(error) and "tls" not in str(error):
                raise
            pytest.skip(f"TLS in the {kind} server of this machine (it was built without)")
        self.url = f"rediss://localhost:{self.port}"


@pytest.fixture(params=SERVERS)
def secure(request: pytest.FixtureRequest, make_server: Make, authority: Authority) -> Secure:
    return Secure(make_server, request.param, authority, "no")


@pytest.mark.parametrize("scripting", [True, False], ids=["scripts", "plain"])
async def test_steps_and_waits_work_over_tls(secure: Secure, authority: Authority, scripting: bool) -> None:
    url = f"{secure.url}?ssl_ca_certs={authority.certificate}"
    async with AsyncQueue("jobs", url=url, scripting=scripting) as queue:
        await queue.create(bound=1)
        with admin(secure.server) as db:
            getting = asyncio.ensure_future(queue.get())
            await blocked(db)
            await queue.put(b"1")
            assert await in_time(getting) == b"1"
            await queue.put(b"x" * 100_000)
            putting = asyncio.ensure_future(queue.put(b"2"))
            await blocked(db)
            assert await queue.get() == b"x" * 100_000
            await in_time(putting)
            assert await queue.get() == b"2"
        await queue.delete()


async def test_a_certificate_of_another_host_is_refused(secure: Secure, authority: Authority, tmp_path: Path) -> None:
    stranger = Authority(tmp_path, "stranger")
    for url in (f"{secure.url}?ssl_ca_certs={stranger.certificate}", secure.url):
        await fails(ServerUnavailableError, AsyncQueue("jobs", url=url).exists(), r"(?i)certificate verify failed")


@pytest.mark.parametrize("kind", SERVERS)
async def test_a_certificate_for_another_host_is_refused(make_server: Make, kind: str, authority: Authority) -> None:
    secure = Secure(make_server, kind, authority, "no", names="DNS:elsewhere.example")
    await fails(
        ServerUnavailableError,
        AsyncQueue("jobs", url=f"{secure.url}?ssl_ca_certs={authority.certificate}").exists(),
        r"(?i)hostname mismatch|not valid for 'localhost'",
    )


async def test_a_plain_client_at_a_tls_port_gets_a_clear_error(secure: Secure) -> None:
    await fails(
        ServerUnavailableError,
        AsyncQueue("jobs", url=f"redis://localhost:{secure.port}").exists(),
        "cannot reach the server at localhost",
    )


async def test_a_tls_client_at_a_plain_port_gets_a_clear_error(secure: Secure, authority: Authority) -> None:
    url = f"rediss://localhost:{secure.server.port}?ssl_ca_certs={authority.certificate}"
    await fails(
        ServerUnavailableError,
        AsyncQueue("jobs", url=url, connect_timeout=1.0).exists(),
        "cannot reach the server at localhost",
    )


@pytest.mark.parametrize("kind", SERVERS)
async def test_a_server_may_want_to_see_a_certificate(make_server: Make, kind: str, authority: Authority) -> None:
    secure = Secure(make_server, kind, authority, "yes")
    certificate, key = authority.sign("client")
    url = f"{secure.url}?ssl_ca_certs={authority.certificate}"
    async with AsyncQueue("jobs", url=f"{url}&ssl_certfile={certificate}&ssl_keyfile={key}") as queue:
        await queue.create()
        await queue.put(b"1")
        assert await queue.get() == b"1"
        await queue.delete()
    await fails(
        ServerUnavailableError, AsyncQueue("jobs", url=url).exists(), r"(?i)certificate required|does it speak TLS"
    )


async def test_a_lease_is_renewed_over_tls_while_the_event_loop_is_blocked(
    secure: Secure, authority: Authority
) -> None:
    async with AsyncQueue("jobs", url=f"{secure.url}?ssl_ca_certs={authority.certificate}") as queue:
        await queue.create()
        await queue.put(b"1")
        with admin(secure.server) as db:
            async with queue.consumer(lease=3) as consumer:
                assert await anext(consumer) == b"1"
                renewed_while_blocked(db, "apressure:__pressure__:jobs:consumer_lease")
        await queue.delete()
