"""What each verb of a queue looks like on every kind, and the exceptions with their reasons."""

from __future__ import annotations

import inspect
import re
import typing
from pathlib import Path
from typing import Any, Final

from apressure import AsyncQueue, EventQueue, FileQueue, TaskQueue
from apressure.core.due import ManyTerms, PutTerms
from apressure.testing import MemoryQueue, MemoryServer
from apressure.testing.contract import VERBS

DEFAULTS: Final = {"cost": 1, "replace": False}
"""Of terms, where that is not None."""

TERMS: Final = {"Unpack[PutTerms]": PutTerms, "Unpack[ManyTerms]": ManyTerms}
KEYWORD_ONLY: Final = inspect.Parameter.KEYWORD_ONLY

KINDS: Final[dict[str, type[Any]]] = {
    **{kind.__name__: kind for kind in (AsyncQueue, EventQueue, TaskQueue, FileQueue)},
    "RemoteEventQueue": EventQueue,
    "MemoryQueue": MemoryQueue,
}
"""The kinds of queue. A `RemoteEventQueue` is an `EventQueue` on an okq server."""

SERVERLESS: Final = ("FileQueue", "MemoryQueue")
"""The kinds of queue that need no server."""

ALSO: Final[dict[tuple[str, str], dict[str, str]]] = {
    ("AsyncQueue", "put"): {"force": "the specification's put in extraordinary situations"},
    ("AsyncQueue", "put_many"): {"force": "as for put"},
    ("AsyncQueue", "receive"): {"max_hold": "its lease is renewed, so a program that is stuck must lose it"},
    ("AsyncQueue", "receive_many"): {"max_hold": "as for receive"},
    ("AsyncQueue", "producer"): {
        "exclusive": "only pressure has a producer role", "lease": "of the role", "timeout": "for the role",
        "max_hold": "of the role",
    },
    ("AsyncQueue", "dead_letters"): {"source": "dead letters are in a queue of their own"},
    ("AsyncQueue", "find_dead_letters"): {"source": "as for dead_letters"},
    ("AsyncQueue", "discard"): {"source": "as for dead_letters"},
    ("AsyncQueue", "requeue"): {"source": "as for dead_letters"},
    ("AsyncQueue", "move_dead_letters"): {"source": "as for dead_letters"},
    ("EventQueue", "put"): {"id": "events have unique ids", "front": "okq's QRPUSH"},
    ("EventQueue", "put_nowait"): {"id": "as for put", "front": "as for put"},
    ("TaskQueue", "purge"): {
        "status": "tasks that have ended are kept, and can be purged, too", "older_than": "of such tasks",
        "on_progress": "there may be millions of them",
    },
    ("FileQueue", "dead_letters"): {"source": "dead letters are in a queue of their own"},
    ("FileQueue", "find_dead_letters"): {"source": "as for dead_letters"},
    ("FileQueue", "discard"): {"source": "as for dead_letters"},
    ("FileQueue", "requeue"): {"source": "as for dead_letters"},
    ("FileQueue", "move_dead_letters"): {"source": "as for dead_letters"},
}  # fmt: skip
"""Arguments that only these kinds take, and why. They come behind the others."""

REFUSED: Final = {
    ("RemoteEventQueue", "browse"): "okq's commands show only the two ends of a queue",
    ("RemoteEventQueue", "add_dead_letters"): "okq's commands put no dead letters",
}
"""Verbs that these kinds refuse with UnsupportedError, and why."""

OTHER_DEFAULTS: Final = {
    ("AsyncQueue", "consumer"): ("shared=True", "shared=False", "its strict order is for one consumer at a time"),
}
"""Defaults that differ, and why."""


class Maker:
    """Makes objects of one queue of a kind, `jobs`, of bytes.

    Args:
        kind: The name of the kind.
        url: The address of the server, for a kind that has one; for a `RemoteEventQueue`, that of the okq server.
        path: A directory.
    """

    def __init__(self, kind: str, url: str, path: Path) -> None:
        self.kind = kind
        self.memory = MemoryServer()
        self._url = url
        self._path = path

    def __call__(self, **options: Any) -> Any:
        """Return another object of the queue; `url`: of another server than the usual one."""
        if self.kind == "FileQueue":
            return FileQueue(self._path / "jobs", **options)
        if self.kind == "MemoryQueue":
            return MemoryQueue("jobs", server=self.memory, **options)
        usual = {"url": self._url, **({"codec": "raw"} if self.kind == "TaskQueue" else {})}
        made = EventQueue if self.kind == "RemoteEventQueue" else KINDS[self.kind]
        return made("jobs", **{**usual, **options})


def parameters(method: Any) -> dict[str, inspect.Parameter]:
    """Return a method's parameters by name, those for which `**terms` stands among them; `deadline` is the last."""
    found: dict[str, inspect.Parameter] = {}
    for one in inspect.signature(method).parameters.values():
        terms = TERMS.get(one.annotation) if one.kind is inspect.Parameter.VAR_KEYWORD else None
        names = [one.name] if terms is None else typing.get_type_hints(terms)
        for name in names:
            found[name] = one if terms is None else inspect.Parameter(name, KEYWORD_ONLY, default=DEFAULTS.get(name))
    if "deadline" in found:
        found["deadline"] = found.pop("deadline")
    return found


def shape(method: Any, without: Any = ()) -> str:
    """Return a method's arguments as in `VERBS`, without some of them."""
    kept = [
        one.replace(annotation=inspect.Parameter.empty)
        for one in parameters(method).values()
        if one.name not in without and one.name != "self"
    ]
    return str(inspect.Signature(kept))


def check_arguments(kind: type[Any], verb: str) -> None:
    """Assert that a kind of queue has a verb, with the arguments of all kinds, and its own behind them."""
    cell = kind.__name__, verb
    method = inspect.getattr_static(kind, verb, None)
    assert method is not None, f"{kind.__name__} has no {verb}"
    also = ALSO.get(cell, {})
    usual, here, _ = OTHER_DEFAULTS.get(cell, ("", "", ""))
    assert shape(method, also) == VERBS[verb].replace(usual, here)
    names = [name for name in parameters(method) if name != "self"]
    assert [*also] == [name for name in names if name in also]
    positional = [name for name in names if parameters(method)[name].kind is not KEYWORD_ONLY]
    common = [name for name in positional if name not in also]
    assert positional[: len(common)] == common, "an argument of this kind changes what others mean"


def table() -> str:
    """Return the part of `docs/learn/choose.md` on what each kind has, read from the classes: first what all have."""
    shown = {name: kind for name, kind in KINDS.items() if name != "MemoryQueue"}  # which is for tests
    columns = [("EventQueue, `okq://`" if name == "RemoteEventQueue" else f"`{name}`") for name in shown]
    lines = [f"| verb | {' | '.join(columns)} |", f"| --- |{' --- |' * len(shown)}"]
    same = []
    for verb, arguments in VERBS.items():
        cells = []
        for name, kind in shown.items():
            method = inspect.getattr_static(kind, verb, None)
            if method is None or (name, verb) in REFUSED:
                cells.append("no")
                continue
            theirs, ours = _names(shape(method)), _names(arguments)
            more = [f"`{argument}=`" for argument in theirs if argument not in ours]
            less = [f"no `{argument}=`" for argument in ours if argument not in theirs]
            _, default, _ = OTHER_DEFAULTS.get((name, verb), ("", "", ""))
            cells.append(", ".join(["yes", *filter(None, [default and f"`{default}`"]), *less]))
            cells[-1] += f", also {', '.join(more)}" if more else ""
        title = "`async for item in queue`" if verb == "__aiter__" else f"`{verb}{_shown(arguments)}`"
        if set(cells) == {"yes"}:
            same.append(title)
        else:
            lines.append(f"| {title} | {' | '.join(cells)} |")
    return f"All have {', '.join(same)}.\n\n" + "\n".join(lines) + "\n"


def _names(arguments: str) -> list[str]:
    return [name for name in re.findall(r"(\w+)(?==|,|\))", re.sub(r"=('\w*'|\w+)", "=", arguments)) if name]


def _shown(arguments: str) -> str:
    """Arguments as the docs show them: `deadline=` is in each that asks the server or the disk."""
    return arguments.replace(", *, deadline=None", "").replace("*, deadline=None", "").replace(", deadline=None", "")
