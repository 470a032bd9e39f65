"""The deliveries of every kind of queue have one set of methods, with one signature each."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from apressure import Delivery, EventDelivery, FileDelivery, RemoteEventDelivery, protocols
from apressure.tasks.delivery import TaskDelivery

KINDS: tuple[type[Any], ...] = (Delivery, EventDelivery, RemoteEventDelivery, FileDelivery, TaskDelivery)

METHODS = inspect.getmembers(protocols.Delivery, inspect.isfunction)
COMMON = (*(name for name, _ in METHODS if not name.startswith("_")), "note_error")

MORE = {(FileDelivery, "extend"): "seconds may be left out: the protocol asks for them, and programs of vsqs did not"}
"""Methods that take more than the others', and why."""


def parameters(method: Any) -> list[tuple[str, Any, Any]]:
    found = inspect.signature(method).parameters.values()
    return [(one.name, one.kind, one.default) for one in found]


def test_the_methods_are_those_of_the_protocol() -> None:
    assert {"ack", "nack", "extend"} <= set(COMMON)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", COMMON)
def test_a_delivery_of_every_kind_takes_the_same_arguments(kind: type[Any], name: str) -> None:
    here, usual = parameters(getattr(kind, name)), parameters(getattr(Delivery, name))
    if (kind, name) in MORE:
        assert [one[:2] for one in here] == [one[:2] for one in usual]
        assert here != usual, "it is no exception any more"
    else:
        assert here == usual
