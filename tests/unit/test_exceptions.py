"""Errors: their attributes, their twins of the standard library, and that they survive pickle and copy."""

from __future__ import annotations

import asyncio
import copy
import errno
import pickle
import sys
from typing import Any

import pytest

import apressure
from apressure import exceptions
from apressure.exceptions import PressureError, QueueError

SERVER: dict[str, dict[str, Any]] = {
    "ServerError": {"code": "ERR"},
    "AuthenticationError": {"code": "NOAUTH"},
    "PermissionDeniedError": {"code": "NOPERM"},
    "OutOfMemoryError": {"code": "OOM"},
    "ReadOnlyError": {"code": "READONLY"},
    "ServerTooOldError": {"code": "ERR"},
    "ScriptingRefusedError": {"code": "NOPERM"},
}
ATTRIBUTES: dict[str, dict[str, Any]] = {
    "PressureError": {},
    "QueueError": {"name": "jobs"},
    "QueueAlreadyExistsError": {"name": "jobs"},
    "QueueDoesNotExistError": {"name": "jobs"},
    "DuplicateEventError": {"name": "jobs", "id": "a"},
    "DuplicateMessageError": {"name": "jobs", "id": "a"},
    "NoReplyError": {"name": "jobs", "id": "a"},
    "RequestFailedError": {"name": "jobs", "id": "a", "error": "why"},
    "QueueClosedError": {"name": "jobs"},
    "QueueFullError": {"name": "jobs", "accepted": 3},
    "QueueEmptyError": {"name": "jobs"},
    "QueueOpenError": {"name": "jobs"},
    "ScheduleDoesNotExistError": {"name": "jobs"},
    "QueueInUseError": {"name": "jobs", "role": "consumer", "holder": "web-1:5", "accepted": 2},
    "OperationUnblockedError": {"name": "jobs"},
    "LeaseLostError": {"name": "jobs", "role": "producer"},
    "ExactlyOnceError": {"name": "jobs"},
    "UnsupportedError": {"name": "jobs"},
    "DecodeError": {"name": "jobs", "raw": b"\xff"},
    "StorageError": {"name": "jobs", "errno": 28},
    "TaskError": {"id": "a"},
    "TaskDoesNotExistError": {"id": "a"},
    "TaskFailedError": {"id": "a", "error": "why"},
    "TaskUnfinishedError": {"id": "a"},
    "TaskStatusError": {"id": "a", "status": "pending"},
    "ClientClosedError": {},
    "ServerUnavailableError": {},
    "ConnectionLimitError": {},
    "OutcomeUnknownError": {},
    "DeadlineError": {"name": "jobs"},
    "DeadlineOutcomeUnknownError": {"name": "jobs"},
    "DurabilityError": {"answer": 3},
    "MissingExtraError": {"extra": "cli"},
    **SERVER,
}
TWINS: dict[str, tuple[type[BaseException], ...]] = {
    "QueueFullError": (asyncio.QueueFull, TimeoutError),
    "QueueEmptyError": (asyncio.QueueEmpty, TimeoutError),
    "QueueOpenError": (TimeoutError,),
    "NoReplyError": (TimeoutError,),
    "QueueInUseError": (TimeoutError,),
    "DuplicateEventError": (ValueError,),
    "ScheduleDoesNotExistError": (LookupError,),
    "TaskDoesNotExistError": (LookupError,),
    "TaskUnfinishedError": (TimeoutError,),
    "TaskStatusError": (ValueError,),
    "ExactlyOnceError": (ValueError,),
    "UnsupportedError": (NotImplementedError,),
    "DecodeError": (ValueError,),
    "StorageError": (OSError,),
    "ServerUnavailableError": (ConnectionError, OSError),
    "OutcomeUnknownError": (ConnectionError,),
    "DeadlineError": (TimeoutError,),
    "DeadlineOutcomeUnknownError": (exceptions.OutcomeUnknownError, ConnectionError, TimeoutError),
    "DurabilityError": (exceptions.OutcomeUnknownError, ConnectionError),
    "PermissionDeniedError": (PermissionError,),
    "MissingExtraError": (ImportError,),
}


def every_error() -> dict[str, type[PressureError]]:
    return {
        name: kind
        for name, kind in vars(exceptions).items()
        if isinstance(kind, type) and issubclass(kind, PressureError)
    }


def make(name: str) -> PressureError:
    return every_error()[name]("what happened", **ATTRIBUTES[name])


each = pytest.mark.parametrize("name", sorted(ATTRIBUTES))


def test_the_table_of_this_module_is_complete() -> None:
    assert set(every_error()) == set(ATTRIBUTES)


@each
def test_every_error_can_be_imported_from_the_package(name: str) -> None:
    assert getattr(apressure, name) is every_error()[name]
    assert name in exceptions.__all__


@each
def test_an_error_has_its_message_and_its_attributes(name: str) -> None:
    error = make(name)
    assert str(error) == "what happened"
    for attribute, value in ATTRIBUTES[name].items():
        assert getattr(error, attribute) == value


@each
def test_an_error_is_documented_with_its_attributes(name: str) -> None:
    kind = every_error()[name]
    documentation = "".join(one.__doc__ or "" for one in kind.__mro__ if issubclass(one, PressureError))
    assert kind.__doc__
    for attribute in ATTRIBUTES[name]:
        assert f"{attribute}:" in documentation


@each
def test_an_error_survives_pickle_and_copy(name: str) -> None:
    error = make(name)
    error.add_note("3 items were put before")
    for twin in (
        copy.copy(error),
        copy.deepcopy(error),
        *(pickle.loads(pickle.dumps(error, protocol)) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)),
    ):
        assert type(twin) is type(error)
        assert str(twin) == "what happened"
        assert twin.args == error.args
        assert twin.__notes__ == ["3 items were put before"]
        for attribute, value in ATTRIBUTES[name].items():
            assert getattr(twin, attribute) == value


@each
def test_an_error_is_the_standard_librarys_too_where_that_has_one(name: str) -> None:
    error = make(name)
    for twin in TWINS.get(name, ()):
        assert isinstance(error, twin)
    assert isinstance(error, TimeoutError) == (TimeoutError in TWINS.get(name, ()))


def test_a_closed_queue_is_asyncios_shut_down_queue_where_python_has_that() -> None:
    twin = getattr(asyncio, "QueueShutDown", None)
    assert (twin is not None) == (sys.version_info >= (3, 13))
    if twin is not None:
        assert isinstance(make("QueueClosedError"), twin)


def test_errors_about_a_queue_are_one_family_and_errors_of_a_server_another() -> None:
    for name, attributes in ATTRIBUTES.items():
        assert isinstance(make(name), QueueError) == ("name" in attributes)
        assert isinstance(make(name), exceptions.ServerError) == (name in SERVER)


@each
def test_an_error_says_that_nothing_was_put_unless_something_was(name: str) -> None:
    kind = every_error()[name]
    error = kind("what happened", **{key: value for key, value in ATTRIBUTES[name].items() if key != "accepted"})
    assert error.accepted == 0
    error.accepted = 5
    assert copy.copy(error).accepted == pickle.loads(pickle.dumps(error)).accepted == 5
    assert kind.accepted == 0


@each
def test_an_error_says_whether_it_is_temporary(name: str) -> None:
    expected = {
        "LeaseLostError", "ServerUnavailableError", "OutcomeUnknownError", "DeadlineOutcomeUnknownError",
        "DurabilityError", "OutOfMemoryError", "ReadOnlyError", "StorageError",
    }  # fmt: skip
    assert make(name).temporary is (name in expected)


def test_the_code_of_a_refusal_says_whether_it_is_temporary() -> None:
    for code in ("LOADING", "BUSY", "CLUSTERDOWN", "MISCONF", "OOM"):
        assert exceptions.ServerError("no", code=code).temporary
    for code in ("ERR", "WRONGTYPE", "NOAUTH", "NOPERM", "MOVED"):
        assert not exceptions.ServerError("no", code=code).temporary
    assert exceptions.StorageError("full", name="jobs", errno=errno.ENOSPC).temporary
    assert not exceptions.StorageError("no", name="jobs", errno=errno.EACCES).temporary


def test_defaults_say_that_nothing_was_put() -> None:
    assert exceptions.QueueFullError("full", name="q").accepted == 0
    assert exceptions.QueueInUseError("used", name="q", role="producer", holder=None).accepted == 0
    assert exceptions.ServerError("x").code == "ERR"
