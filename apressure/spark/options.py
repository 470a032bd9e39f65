"""The options of the source and of the sink `pressure`: one table, checked, no I/O. No pyspark is needed here."""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from apressure.connection.settings import DEFAULT_PREFIX, Settings, resolve
from apressure.spark.keys import check_group

_PATTERN: Final = frozenset("*?[")
_SERVER: Final = {"REDIS_SERVER": "127.0.0.1", "REDIS_PORT": "6379", "REDIS_DB": "0"}
_OF_SPARK: Final = frozenset({"checkpointlocation", "queryname"})
"""What Spark hands over with the options, and means itself."""


def _option(default: Any, about: str, of: str = "read write", secret: bool = False) -> Any:
    return dataclasses.field(default=default, repr=not secret, metadata={"about": about, "of": of})


@dataclasses.dataclass(frozen=True)
class Options:
    """What a user may say with `.option(…)`. Upper and lower case are the same. The `repr` shows no secret."""

    url: str | None = _option(
        None,
        "The server, as everywhere in apressure: `redis://…`, `rediss://…`, `unix://…`, `redis+sentinel://…`, "
        "`redis+cluster://…`. Without it APRESSURE_URL, or REDIS_SERVER, REDIS_PORT and REDIS_DB, of the driver.",
        secret=True,
    )
    username: str | None = _option(None, "For servers with users.")
    password: str | None = _option(None, "For servers with a password. No plan, log or error shows it.", secret=True)
    prefix: str | None = _option(None, "What the queues' keys begin with; `__pressure__` by default.")
    queue: str | None = _option(None, "The queue's name.")
    queues: str | None = _option(
        None,
        "Several queues as one stream: names with commas between them, or a pattern with `*`, `?` or `[…]`.",
        "read",
    )
    group: str | None = _option(
        None,
        "Who reads: one name for each streaming query. Needed by `readStream`; a name stands for a checkpoint.",
        "read",
    )
    format: str = _option(
        "raw",
        "`raw`: a column `body` with the messages as they are. `json`: each message is an object with the columns of "
        "the schema that you give (reading), or of the data frame (writing).",
    )
    corrupt_record: str = _option(
        "_corrupt_record",
        "With `format=json`: the column, BINARY or STRING, that gets a message which cannot be decoded. Without such a "
        "column in the schema such a message is an error.",
        "read",
    )
    max_rows_per_batch: int = _option(50_000, "The most messages of a micro-batch, over all queues.", "read")
    num_partitions: int = _option(
        0, "The most tasks that read a batch; 0 for one a processor of the driver. Small batches take fewer.", "read"
    )
    fetch_size: int = _option(
        10_000,
        "The most messages of one answer of the server. (Large messages come in smaller portions by themselves.)",
    )
    role_timeout: float = _option(
        10.0,
        "Seconds to wait for a role that another client holds. Then a stream tries again later, and a write fails.",
    )
    poll_wait: float = _option(
        0.2,
        "Seconds for which a stream waits at the server for the first message before Spark hears that there is none.",
        "read",
    )
    create: bool = _option(False, "Make the queue where it does not exist.")
    bound: int = _option(0, "With `create`: how many messages may wait in the queue; 0 for any number.")
    close_on_end: bool = _option(
        False,
        "Close the queue when everything has been written. For `df.write`; a stream does not tell its sink of its end.",
        "write",
    )
    staging_ttl: float = _option(
        86_400.0, "Seconds after which the server forgets what a task wrote whose job was never finished.", "write"
    )
    connect_timeout: float = _option(5.0, "Seconds that one attempt to connect may take.")
    response_timeout: float = _option(15.0, "Seconds after which an answer is given up.")
    retry_timeout: float | None = _option(
        None, "Seconds for which a lost connection is tried again; 10, and 60 with Sentinels or a cluster."
    )

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Options:
        """Read the options that Spark hands over.

        Raises:
            ValueError: One is unknown, or of no use; it says why.
        """
        fields = {spelling(field.name).lower(): field for field in dataclasses.fields(cls)}
        values: dict[str, Any] = {}
        for key, text in given.items():
            field = fields.get(key.lower())
            if field is None:
                if key.lower() in _OF_SPARK:
                    continue
                raise ValueError(_unknown(key, fields))
            values[field.name] = _READ[str(field.type)](spelling(field.name), text)
        for name, found in _from_environment(os.environ).items():
            values.setdefault(name, found)
        options = cls(**values)
        options._check()
        return options

    def _check(self) -> None:
        if (self.queue is None) == (self.queues is None):
            raise ValueError("say which queue: .option('queue', NAME), or .option('queues', 'NAME,NAME' or a pattern)")
        if self.format not in ("raw", "json"):
            raise ValueError(f"format must be raw or json, not {self.format!r}")
        if self.group is not None:
            check_group(self.group)
        if self.bound and not self.create:
            raise ValueError("bound is for a queue that is made: add .option('create', True)")
        for name in ("max_rows_per_batch", "fetch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{spelling(name)} must be at least 1")
        if self.staging_ttl < 1:
            raise ValueError("stagingTtl must be at least 1 second")
        if self.poll_wait > self.response_timeout / 2:
            raise ValueError("pollWait must be at most half of responseTimeout")
        if self.create and self.pattern:
            raise ValueError("create needs names: a pattern stands for queues that exist")

    @property
    def names(self) -> tuple[str, ...]:
        """The queues that are named; none for a pattern."""
        if self.queue is not None:
            return (self.queue,)
        if self.pattern:
            return ()
        return tuple(dict.fromkeys(name.strip() for name in (self.queues or "").split(",") if name.strip()))

    @property
    def pattern(self) -> str | None:
        """The pattern of the queues' names, if it is one."""
        return self.queues if self.queues is not None and _PATTERN & set(self.queues) else None

    def settings(self) -> Settings:
        """What a connection needs to know.

        Raises:
            TypeError, ValueError: The URL, or something in it, is of no use.
        """
        given: dict[str, Any] = {
            name: getattr(self, name)
            for name in (
                "url",
                "username",
                "password",
                "prefix",
                "connect_timeout",
                "response_timeout",
                "retry_timeout",
            )
            if getattr(self, name) is not None
        }
        settings = resolve(given, {})  # type: ignore[arg-type]
        if settings.embedded:
            raise ValueError(
                "an embedded server belongs to one process, and Spark has many: start one with "
                "apressure.embedded.EmbeddedServer() and give its url"
            )
        return settings


def spelling(name: str) -> str:
    """The name of an option as it is written in Spark: `max_rows_per_batch` is `maxRowsPerBatch`."""
    if name == "corrupt_record":
        return "columnNameOfCorruptRecord"  # as in Spark's own sources
    head, *rest = name.split("_")
    return head + "".join(map(str.title, rest))


def table() -> str:
    """The documentation of all options, in Markdown."""
    lines = ["| Option | Of | Default | Meaning |", "| --- | --- | --- | --- |"]
    for field in dataclasses.fields(Options):
        default = "" if field.default is None else f"`{str(field.default).lower()}`"
        of = " ".join(field.metadata["of"].split())
        lines.append(f"| `{spelling(field.name)}` | {of} | {default} | {field.metadata['about']} |")
    return "\n".join(lines) + "\n"


def _from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What the driver's environment says (specification, "Message Brokers"): the workers' may say something else."""
    where = [environment.get(name) or default for name, default in _SERVER.items()]
    url = environment.get("APRESSURE_URL") or "redis://{}:{}/{}".format(*where)
    return {"url": url, "prefix": environment.get("PRESSURE_PREFIX") or DEFAULT_PREFIX}


def _unknown(key: str, fields: Mapping[str, dataclasses.Field[Any]]) -> str:
    near = difflib.get_close_matches(key.lower(), fields, 1, 0.5)
    known = [spelling(field.name) for field in fields.values()]
    if near:
        return f"unknown option {key!r}: did you mean {spelling(fields[near[0]].name)!r}?"
    return f"unknown option {key!r}; the options are {', '.join(known)}"


def _number(kind: type[int | float]) -> Callable[[str, str], Any]:
    def read(name: str, text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            what = "a whole number" if kind is int else "a number"
            raise ValueError(f"{name} must be {what}, not {text!r}") from None
        if not 0 <= value < 1e12:
            raise ValueError(f"{name} must be at least 0, not {text}")
        return value

    return read


def _truth(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{name} must be true or false, not {text!r}")
    return text.lower() == "true"


_READ: Final[Mapping[str, Callable[[str, str], Any]]] = {
    "str": lambda _, text: text,
    "str | None": lambda _, text: text,
    "int": _number(int),
    "float": _number(float),
    "float | None": _number(float),
    "bool": _truth,
}
