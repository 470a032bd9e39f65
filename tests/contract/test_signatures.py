"""Queues and deliveries of every kind have one set of methods, with one signature each."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from apressure import (
    Delivery,
    EventDelivery,
    EventProducer,
    FileDelivery,
    QueueProducer,
    RemoteEventDelivery,
    protocols,
)
from apressure.pressure.producer import Producer
from apressure.tasks.delivery import TaskDelivery
from apressure.testing.memory.delivery import MemoryDelivery
from tests.contract.matrix import ALSO, KINDS, OTHER_DEFAULTS, VERBS, check_arguments, shape, table

DELIVERIES: tuple[type[Any], ...] = (
    Delivery, EventDelivery, RemoteEventDelivery, FileDelivery, TaskDelivery, MemoryDelivery,
)  # fmt: skip

METHODS = inspect.getmembers(protocols.Delivery, inspect.isfunction)
COMMON = (*(name for name, _ in METHODS if not name.startswith("_")), "note_error")

MORE = {(FileDelivery, "extend"): "seconds may be left out: the protocol asks for them, and programs of vsqs did not"}
"""Methods that take more than the others', and why."""

PRODUCERS: dict[str, type[Any]] = {
    "AsyncQueue": Producer, "EventQueue": EventProducer, "TaskQueue": QueueProducer, "FileQueue": QueueProducer,
    "MemoryQueue": QueueProducer,
}  # fmt: skip

CELLS = [(kind, verb) for kind in KINDS for verb in VERBS]
"""Where the matrix of kinds and verbs has something to say."""


@pytest.mark.parametrize(("kind", "verb"), CELLS)
def test_a_queue_of_every_kind_has_each_verb_with_the_same_arguments(kind: str, verb: str) -> None:
    check_arguments(KINDS[kind], verb)


@pytest.mark.parametrize("verb", ["put", "put_nowait", "put_many"])
@pytest.mark.parametrize("kind", PRODUCERS)
def test_a_producer_puts_as_its_queue_does(kind: str, verb: str) -> None:
    assert shape(getattr(PRODUCERS[kind], verb), ALSO.get((kind, verb), {})) == VERBS[verb]


def test_each_exception_is_one() -> None:
    assert ALSO.keys() | OTHER_DEFAULTS.keys() <= {*CELLS}


def test_the_table_of_the_docs_is_what_the_classes_have() -> None:
    page = (Path(__file__).parents[2] / "docs" / "learn" / "choose.md").read_text()
    assert table() in page, f"docs/learn/choose.md is stale. Its table is now:\n\n{table()}"


def parameters(method: Any) -> list[tuple[str, Any, Any]]:
    found = inspect.signature(method).parameters.values()
    return [(one.name, one.kind, one.default) for one in found]


def test_the_methods_are_those_of_the_protocol() -> None:
    assert {"ack", "nack", "extend"} <= set(COMMON)


@pytest.mark.parametrize("kind", DELIVERIES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", COMMON)
def test_a_delivery_of_every_kind_takes_the_same_arguments(kind: type[Any], name: str) -> None:
    here, usual = parameters(getattr(kind, name)), parameters(getattr(Delivery, name))
    if (kind, name) in MORE:
        assert [one[:2] for one in here] == [one[:2] for one in usual]
        assert here != usual, "it is no exception any more"
    else:
        assert here == usual
