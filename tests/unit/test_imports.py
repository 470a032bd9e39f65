"""`import apressure` and its names load little, and the lazy names work."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import pydoc
import sys
from datetime import UTC, datetime

import pytest

import apressure
from tests import processes

LATER = (
    "FileQueue", "Many", "Piped", "QueueStatistics", "RoleStatistics", "Served", "pipe", "recovery", "serve",
)  # fmt: skip

UNLOADED = (
    "anyio",
    "apressure.cli",
    "apressure.connection.parsing",
    "apressure.connection.wire.connecting",
    "apressure.connection.wire.fake",
    "apressure.embedded",
    "apressure.files",
    "apressure.pressure.consumer",
    "apressure.pressure.delivery",
    "apressure.pressure.doctor.findings",
    "apressure.pressure.engine.plain.engine",
    "apressure.pressure.doctor.recovery",
    "apressure.pressure.leases.lease",
    "apressure.pressure.mover",
    "apressure.pressure.producer",
    "apressure.service.pipe",
    "apressure.service.serve",
    "apressure.service.service",
    "apressure.concurrency.signals",
    "apressure.pressure.statistics",
    "apressure.pressure.engine.plain.role_lock",
    "apressure.telemetry",
    "asyncinotify",
    "fakeredis",
    "msgspec",
    "prometheus_client",
    "pyspark",
    "redis",
    "rich",
    "typer",
)


def fresh(program: str) -> list[str]:
    """The lines that a program prints in a new interpreter."""
    done = processes.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.splitlines()


def loaded_by(program: str) -> set[str]:
    """The modules that a program loads."""
    return set(fresh(f"import sys; before = set(sys.modules); {program}; print(*{{*sys.modules}} - before, sep='\\n')"))


def test_the_package_alone_loads_no_module_of_its_rooms():
    loaded = loaded_by("import apressure")
    assert {name for name in loaded if name.startswith("apressure")} == {"apressure", "apressure.lazy"}
    assert loaded.isdisjoint(("asyncio", "hiredis", "redis", "ssl"))


def test_a_queue_class_loads_nothing_that_most_programs_do_without():
    ours = [name for name in UNLOADED if name.startswith("apressure")]
    assert [name for name in ours if importlib.util.find_spec(name) is None] == []
    loaded = loaded_by("from apressure import AsyncQueue")
    assert "apressure.pressure.queue" in loaded
    assert loaded.isdisjoint(UNLOADED)


@pytest.mark.parametrize(
    "name", ["AsyncQueue", "Client", "EventQueue", "FileQueue", "TaskClient", "open_queue", "pipe", "serve"]
)
def test_no_public_name_loads_redis_py(name: str):
    assert loaded_by(f"from apressure import {name}").isdisjoint(("redis", "anyio"))


def test_redis_py_is_loaded_when_a_queue_of_a_server_is_made():
    assert "redis" in loaded_by("from apressure import AsyncQueue; AsyncQueue('q', url='redis://h')")


def test_a_queue_of_the_private_server_is_made_without_redis_py():
    assert "redis" not in loaded_by("from apressure import AsyncQueue; AsyncQueue('q', url='embedded://')")


def test_a_queue_class_loads_little_of_the_standard_library_that_redis_does_not_load():
    beyond = fresh(
        "import sys, redis.asyncio; before = set(sys.modules); from apressure import AsyncQueue; "
        "print(*(name for name in sys.modules if name not in before), sep='\\n')"
    )
    # They are loaded by other versions of redis-py, too.
    allowed = {"__future__", "dataclasses"}
    assert {name for name in beyond if name.partition(".")[0] != "apressure"} <= allowed


def test_an_import_reads_no_script():
    opened = fresh(
        "import sys; files = []; "
        "sys.addaudithook(lambda event, args: files.append(str(args[0])) if event == 'open' else None); "
        "from apressure import AsyncQueue; print(*files, sep='\\n')"
    )
    assert any(name.endswith((".py", ".pyc")) for name in opened)
    assert [name for name in opened if name.endswith(".lua")] == []


def test_the_package_has_few_public_names_and_each_is_there():
    shown = fresh(
        "import apressure; print(*dir(apressure)); "
        "print(*(getattr(apressure, name).__name__.rpartition('.')[2] for name in apressure.__all__))"
    )
    assert set(apressure.__all__) <= set(shown[0].split())
    assert shown[1].split() == apressure.__all__
    assert len(apressure.__all__) <= 30


ROOMS = {
    "codecs": "CloudEventsCodec Codec PydanticCodec TypedCodec",
    "connection": "ClientOptions",
    "core": "BrowsedMessage KeyLimit Limits MessagePage QueueConsumer QueueProducer Rate",
    "dead_letters": "Failure Requeued",
    "events": "EventConsumers EventDelivery EventProducer EventQueueStatistics RemoteEventConsumer RemoteEventDelivery "
    "RemoteEventQueue RemoteEventStatistics",
    "exceptions": "LeaseLostError QueueClosedError QueueEmptyError QueueError ServerError TaskError",
    "files": "FileDelivery FileQueueOptions FileQueueStatistics",
    "pressure": "Consumer Producer QueueStatistics RoleStatistics",
    "service": "Piped Served",
}
"""Names that version 0.1 had in the package itself (of the errors, some: test_exceptions.py has all)."""


@pytest.mark.parametrize("room", ROOMS)
def test_a_name_that_has_moved_works_in_both_places(room: str):
    names = ROOMS[room]
    program = (
        f"from apressure.{room} import {names.replace(' ', ', ')}; import apressure; "
        f"print(*(getattr(apressure, name) is globals()[name] for name in {names!r}.split()))"
    )
    assert set(fresh(program)[0].split()) == {"True"}
    assert set(names.split()) <= set(importlib.import_module(f"apressure.{room}").__all__)
    assert not set(names.split()) & set(apressure.__all__)


def test_a_module_of_the_package_is_imported_without_a_search_for_a_class_of_its_name():
    loaded = loaded_by("from apressure import logs")
    assert "apressure.logs" in loaded
    assert "apressure.codecs" not in loaded


def test_a_lazy_name_is_the_object_of_its_module():
    from apressure import files
    from apressure.pressure import statistics
    from apressure.pressure.doctor import recovery
    from apressure.service import pipe as stages
    from apressure.service import serve
    from apressure.service.stages import results

    found = [getattr(apressure, name) for name in LATER]
    assert found == [
        files.FileQueue,
        results.Many,
        stages.Piped,
        statistics.QueueStatistics,
        statistics.RoleStatistics,
        serve.Served,
        stages.pipe,
        recovery,
        serve.serve,
    ]
    assert set(LATER) <= vars(apressure).keys()  # asked for once


def test_a_star_brings_every_public_name():
    names = fresh("from apressure import *; print(*dir(), sep='\\n')")
    assert set(apressure.__all__) <= set(names)


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'apressure' has no attribute 'nothing'"):
        apressure.nothing  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(ImportError):
        from apressure import nothing  # noqa: F401


def test_help_has_every_public_name():
    text = pydoc.render_doc(apressure, renderer=pydoc.plaintext)
    assert [name for name in apressure.__all__ if name not in text] == []


def test_a_pickle_of_a_lazy_name_loads_in_a_new_interpreter():
    role = apressure.RoleStatistics("free", None, None, datetime(2020, 1, 1, tzinfo=UTC))
    shown = fresh(f"import pickle; print(pickle.loads({pickle.dumps([role, apressure.serve])!r})[0].state)")
    assert shown == ["free"]


def test_queues_in_directories_load_no_more_of_servers_than_the_package_does():
    beyond = fresh(
        "import sys, apressure.exceptions; before = set(sys.modules); import apressure.files; "
        "print(*(name for name in sys.modules if name not in before), sep='\\n')"
    )
    assert "apressure.files.queue" in beyond
    servers = ("redis", "hiredis", "asyncinotify", "anyio", "apressure.connection", "apressure.pressure")
    assert [name for name in beyond if name.startswith(servers)] == []
