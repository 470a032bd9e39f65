"""`apressure.sync` has every public method of the asynchronous objects, with the same arguments."""

from __future__ import annotations

import inspect
from typing import Any, Final

import pytest

import apressure.pressure.producer
from apressure import (
    AsyncQueue,
    Consumer,
    Delivery,
    EventConsumers,
    EventDelivery,
    EventProducer,
    EventQueue,
    FileDelivery,
    FileQueue,
    QueueConsumer,
    QueueProducer,
    RemoteEventConsumer,
    RemoteEventDelivery,
    TaskQueue,
    sync,
)
from apressure.events.consumer import EventConsumer
from apressure.files.consumer import FileConsumer
from apressure.sync import events, pressure, verbs
from apressure.tasks.delivery import TaskDelivery
from apressure.tasks.nodes.consumer import TaskConsumer

PAIRS: Final[tuple[tuple[type[Any], type[Any]], ...]] = (
    (AsyncQueue, sync.BlockingQueue),
    (EventQueue, sync.BlockingEventQueue),
    (FileQueue, sync.BlockingFileQueue),
    (TaskQueue, sync.BlockingTaskQueue),
    (Delivery, sync.Delivery),
    (EventDelivery, sync.Delivery),
    (RemoteEventDelivery, sync.Delivery),
    (FileDelivery, sync.BlockingFileDelivery),
    (TaskDelivery, sync.BlockingTaskDelivery),
    (Consumer, sync.Consumer),
    (QueueConsumer, sync.Consumer),
    (EventConsumer, sync.Consumer),
    (RemoteEventConsumer, sync.Consumer),
    (FileConsumer, sync.Consumer),
    (TaskConsumer, sync.Consumer),
    (EventConsumers, sync.EventConsumers),
    (apressure.pressure.producer.Producer, pressure.BlockingProducer),
    (EventProducer, events.BlockingEventProducer),
    (QueueProducer, verbs.BlockingQueueProducer),
)

_PARTS = "other parts of the library call it: no page of the documentation has it"

ABSENT: Final = {
    "aclose": "`release()` and the end of the block do that",
    "move_dead_letters": "each queue has an event loop of its own",
    "mover": "for `pipe`, which needs asyncio",
    "check": _PARTS,
    "check_replies": _PARTS,
    "encode_reply": _PARTS,
    "client_closed": _PARTS,
    "end": _PARTS,
    "registers": _PARTS,
    "registry": _PARTS,
    "put_letter": _PARTS,
    "check_letter": _PARTS,
    "source_of": _PARTS,
    # What consumers call of their queues
    "breathe": _PARTS,
    "deliveries": _PARTS,
    "poll": _PARTS,
    "take": _PARTS,
    # TaskQueue and TaskDelivery
    "expected": _PARTS,
    "prepare": _PARTS,
    "put_chunks": _PARTS,
    "listener": _PARTS,
    "logged_reason": "for the Runner",
    "want": _PARTS,
    "until": _PARTS,
    "nacked": _PARTS,
    "note_dead": _PARTS,
    "on_renewed": "it is called in any thread and must not block: for the Runner",
    "renewed": _PARTS,
    "tell": _PARTS,
    # EventDelivery, RemoteEventDelivery and FileDelivery
    "certain": _PARTS,
    "certain_until": _PARTS,
    "claim": _PARTS,
    "decode": _PARTS,
    "excused": _PARTS,
    "failure": _PARTS,
    "forget": _PARTS,
    "given_back": _PARTS,
    "handed_out": _PARTS,
    "in_hand": _PARTS,
    "lost": _PARTS,
    "moved": _PARTS,
    "queue": _PARTS,
    "renew": _PARTS,
}
"""What `apressure.sync` has not, and why."""

DIFFERENT: Final = {
    "ack_soon": "the reply is what a service has encoded",
    "consume": "the options are passed on as they are",
    "consumer": "`shared=None` is the default of the kind, and the arguments are those of all kinds",
    "put_many": "it puts in chunks, since a generator runs in this thread: `timeout` limits all of them, no `deadline`",
}
"""Methods whose arguments differ, and why."""


def public(kind: type[Any]) -> set[str]:
    own = {name for base in kind.__mro__ if base is not object for name in (*vars(base), *_slots(base))}
    return {name for name in own if not name.startswith("_")}


def _slots(kind: type[Any]) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def parameters(method: Any) -> list[tuple[str, Any, Any]]:
    return [(one.name, one.kind, one.default) for one in inspect.signature(method).parameters.values()][1:]


@pytest.mark.parametrize(("asynchronous", "blocking"), PAIRS, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_a_blocking_object_has_what_the_asynchronous_one_has(asynchronous: type[Any], blocking: type[Any]) -> None:
    names = public(asynchronous) - ABSENT.keys()
    assert sorted(names - public(blocking)) == []
    for name in sorted(names - DIFFERENT.keys()):
        method, ours = getattr(asynchronous, name), getattr(blocking, name)
        if not inspect.isfunction(method):
            continue
        assert inspect.isfunction(ours), name
        assert parameters(ours) == parameters(method), name
        assert not inspect.iscoroutinefunction(ours), name
        assert ours.__doc__, name


def test_blocking_methods_wait_and_none_returns_a_coroutine() -> None:
    iterable = [kind for kind, _ in PAIRS if hasattr(kind, "__aiter__")]
    blocking = dict(PAIRS)
    assert all(hasattr(blocking[kind], "__iter__") for kind in iterable)
    assert AsyncQueue in iterable


def test_each_exception_is_one() -> None:
    present = {name for kind, _ in PAIRS for name in public(kind)}
    offered = {name for _, kind in PAIRS for name in public(kind)}
    assert ABSENT.keys() <= present
    assert not ABSENT.keys() & offered
    assert DIFFERENT.keys() <= present & offered
