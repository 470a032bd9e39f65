"""The options of the source and of the sink `pressure`: one table, checked, no I/O. No pyspark is needed here."""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from apressure import validation
from apressure.connection.settings import DEFAULT_PREFIX, ClientOptions, Settings, settings_from

_PATTERN: Final = frozenset("*?[")
_MOST: Final = 1e12
_SERVER: Final = {"REDIS_SERVER": "127.0.0.1", "REDIS_PORT": "6379", "REDIS_DB": "0"}
_SYNONYMS: Final = {
    "maxoffsetspertrigger": "maxRowsPerBatch",
    "maxbytespertrigger": "maxBytesPerBatch",
    "minoffsetspertrigger": "minRowsPerBatch",
    "maxtriggerdelay": "maxBatchDelay",
    "minpartitions": "numPartitions",
}
"""Names that users of other sources of Spark know."""
_NO_HISTORY: Final = (
    "a queue keeps no history, so there is no {name}: a new checkpoint begins with the oldest message that waits. "
    "Leave the option out; to begin with new messages, empty the queue first with `AsyncQueue.purge()`"
)
_NAME_QUEUES: Final = "there is no {name}: name the queues with `queue` or `queues`"
_REFUSED: Final = {
    **dict.fromkeys(
        (
            *("startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp"),
            *("endingoffsets", "endingtimestamp", "endingoffsetsbytimestamp"),
        ),
        _NO_HISTORY,
    ),
    **dict.fromkeys(("subscribe", "subscribepattern", "assign", "topic", "path"), _NAME_QUEUES),
    "kafka.bootstrap.servers": "there is no {name}: name the server with `url`",
    **dict.fromkeys(("kafka.group.id", "groupidprefix"), "there is no {name}: name the reading query with `group`"),
    "includeheaders": "there is no {name}: with format=cloudevents a column `headers` has them",
    "failondataloss": "{name} cannot be set: if the server has lost a batch that Spark needs, the query always fails. "
    "To go on without these rows, start with a new checkpoint",
}
"""Options of Spark's other sources that a queue does not have."""
_OF_SPARK: Final = frozenset({"checkpointlocation", "queryname"})
"""Spark's own options, which it hands over with ours."""
_UNITS: Final = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
"""Seconds of each unit that Spark writes behind a time."""
SLOTS: Final = "APRESSURE_SPARK_SLOTS"
"""The environment variable that tells Spark's Python processes how many tasks the cluster can run at once."""


def _option(default: Any, about: str, of: str = "read write", secret: bool = False) -> Any:
    return dataclasses.field(default=default, repr=not secret, metadata={"about": about, "of": of})


@dataclasses.dataclass(frozen=True)
class Options:
    """What a user may set with `.option(…)`. Upper and lower case are the same. The `repr` shows no secret."""

    url: str | None = _option(
        None,
        "The server; by default APRESSURE_URL, or REDIS_SERVER, REDIS_PORT and REDIS_DB, of the driver.",
        secret=True,
    )
    username: str | None = _option(None, "The user.")
    password: str | None = _option(None, "The password; never shown.", secret=True)
    prefix: str | None = _option(None, "The prefix of the queues' keys; `__pressure__` by default.")
    queue: str | None = _option(None, "The queue's name.")
    queues: str | None = _option(
        None, "Several queues as one stream: names separated by commas, or a pattern with `*`, `?` or `[…]`.", "read"
    )
    queue_column: str | None = _option(
        None,
        "The STRING column that names the queue of each row, apart from the message. Rows with NULL go to `queue`.",
        "write",
    )
    group: str | None = _option(
        None, "A name for each reading query and its checkpoint. `readStream` requires it.", "read"
    )
    format: str = _option(
        "raw",
        "`raw`: the column `body` is the message. `json`: the message is an object with the columns of your schema or "
        "data frame. `cloudevents`: it is a CloudEvent in JSON.",
    )
    corrupt_record: str = _option(
        "_corrupt_record",
        "The BINARY or STRING column for messages that cannot be decoded. If the schema lacks it, they are errors.",
        "read",
    )
    max_attempts: int = _option(
        0,
        "How often the query tries a message that cannot be decoded, before the message goes to the dead-letter queue. "
        "0: such a message ends the query.",
        "read",
    )
    max_rows_per_batch: int = _option(
        200_000, "The most messages in a micro-batch, over all queues; also `maxOffsetsPerTrigger`.", "read"
    )
    max_bytes_per_batch: int = _option(
        268_435_456,
        "About the most bytes of messages in a micro-batch, over all queues: up to 1 MB more for each queue, or one "
        "large message; 0 for no limit. Also `maxBytesPerTrigger`.",
        "read",
    )
    min_rows_per_batch: int = _option(
        0,
        "A stream waits until its queues together have so many messages; also `minOffsetsPerTrigger`.",
        "read",
    )
    max_batch_delay: float = _option(
        900.0,
        "With `minRowsPerBatch`: seconds after the last batch when a stream stops waiting; also `maxTriggerDelay`.",
        "read",
    )
    num_partitions: int = _option(
        0,
        "The most tasks that read a batch; 0: as many as the cluster runs at once. Also `minPartitions`.",
        "read",
    )
    fetch_size: int = _option(10_000, "The most messages in one request to the server; fewer if they are large.")
    role_timeout: float = _option(
        10.0,
        "Seconds to wait for a role. Then a stream tries later, and a write fails.",
    )
    poll_wait: float = _option(
        0.2, "Seconds that a stream waits for a message before it says that there is none.", "read"
    )
    stop_at_end: bool = _option(
        False,
        "With `.trigger(availableNow=True)`: end the stream only when all of its queues are closed and processed.",
        "read",
    )
    end_time_column: str | None = _option(
        None,
        "With `format=json` or `cloudevents`: the TIMESTAMP column of a last row in the far future, which comes when "
        "all queues are closed and empty, and moves the watermark past the last windows.",
        "read",
    )
    end_message: str | None = _option(
        None,
        "The same with `format=raw`: the last row has this `body`, from which your query takes a time.",
        "read",
    )
    create: bool = _option(False, "Create the queue if it does not exist.")
    bound: int = _option(0, "With `create`: how many messages may wait; 0 for no bound.")
    close_on_end: bool = _option(
        False,
        "Close the queue when all is written; only for `df.write`.",
        "write",
    )
    staging_ttl: float = _option(
        86_400.0, "Seconds until the server deletes what tasks of an unfinished job wrote.", "write"
    )
    connect_timeout: float = _option(5.0, "Seconds that one attempt to connect may take.")
    response_timeout: float = _option(15.0, "Seconds to wait for a reply.")
    retry_timeout: float | None = _option(
        None, "Seconds to retry after a lost connection; 10 by default, 60 with Sentinels or a cluster."
    )

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        """Parse and check options; None counts as not given.

        Spark hands over the options of CREATE TABLE twice, once with `option.` before the name, and properties of the
        table beside them.

        Raises:
            ValueError: An option is unknown or invalid.
        """
        if any(key.lower() == "provider" for key in given):
            head = "option."
            given = {key[len(head) :]: value for key, value in given.items() if key.lower().startswith(head)}
        fields = {spelling(field.name).lower(): field for field in dataclasses.fields(cls)}
        values: dict[str, Any] = {}
        for key, value in given.items():
            if value is None:
                continue
            field = fields.get(_SYNONYMS.get(key.lower(), key).lower())
            if field is None:
                if key.lower() in _OF_SPARK:
                    continue
                raise ValueError(_unknown(key, fields))
            if field.name in values:
                raise ValueError(f"{key} and a synonym of it are given: leave one of them out")
            if key.lower() == "maxtriggerdelay" and str(value).strip().isdecimal():
                raise ValueError(
                    f"{key} needs a unit, for example '{value}ms' or '{value}s'"
                )  # Kafka's has another one
            values[field.name] = _READ[str(field.type)](spelling(field.name), str(value))
        for name, found in _from_environment(os.environ).items():
            values.setdefault(name, found)
        options = cls(**values)
        options._check()
        return options

    def _check(self) -> None:
        if (self.queue is None) == (self.queues is None):
            raise ValueError(
                "name the queue: .option('queue', NAME), or .option('queues', 'NAME,NAME' or a pattern). If these "
                "are options of a table: Spark does not hand them over. Use CREATE TEMPORARY VIEW … USING pressure "
                "OPTIONS (…), or FROM table WITH (queue = …)"
            )
        if self.format not in ("raw", "json", "cloudevents"):
            raise ValueError(f"format must be raw, json or cloudevents, not {self.format!r}")
        if self.group is not None:
            check_group(self.group)
        if self.bound and not self.create:
            raise ValueError("bound is only for a new queue: add .option('create', True)")
        for name in ("max_rows_per_batch", "fetch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{spelling(name)} must be at least 1")
        if self.min_rows_per_batch > self.max_rows_per_batch:
            raise ValueError("minRowsPerBatch must be at most maxRowsPerBatch")
        if self.staging_ttl < 1:
            raise ValueError("stagingTtl must be at least 1 second")
        if self.poll_wait > self.response_timeout / 2:
            raise ValueError("pollWait must be at most half of responseTimeout")
        if self.stop_at_end and self.poll_wait < 0.05:
            raise ValueError("with stopAtEnd, pollWait must be at least 50 ms: so often the stream looks for messages")
        if self.stop_at_end and self.pattern:
            raise ValueError("stopAtEnd needs names: new queues may match a pattern at any time, so it has no end")
        self._check_end()
        if self.create and self.pattern:
            raise ValueError("create needs names: a pattern finds only queues that exist")

    def _check_end(self) -> None:
        if self.end_time_column is not None and self.format == "raw":
            raise ValueError("endTimeColumn needs format=json or format=cloudevents: with format=raw use endMessage")
        if self.end_message is not None and self.format != "raw":
            raise ValueError(f"endMessage is for format=raw: with format={self.format} use endTimeColumn")
        if self.ends and self.pattern:
            raise ValueError(f"{self.ends} needs names: new queues may match a pattern at any time, so it has no end")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the queues; empty for a pattern."""
        if self.queue is not None:
            return (self.queue,)
        if self.pattern:
            return ()
        return tuple(dict.fromkeys(name.strip() for name in (self.queues or "").split(",") if name.strip()))

    @property
    def pattern(self) -> str | None:
        """The pattern of the queues' names; None if they are named."""
        return self.queues if self.queues is not None and _PATTERN & set(self.queues) else None

    @property
    def ends(self) -> str:
        """The option that asks for a row that ends the stream; '' without one."""
        asked = {"endTimeColumn": self.end_time_column, "endMessage": self.end_message}
        return next((name for name, value in asked.items() if value is not None), "")

    @property
    def tasks(self) -> int:
        """The most tasks that read a batch."""
        return self.num_partitions or int(os.environ.get(SLOTS) or 0) or os.cpu_count() or 1

    def settings(self) -> Settings:
        """Return the settings of a connection.

        Raises:
            TypeError, ValueError: The URL, or a part of it, is invalid.
        """
        shared = ClientOptions.__annotations__.keys() & vars(self).keys()
        given: dict[str, Any] = {name: getattr(self, name) for name in shared if getattr(self, name) is not None}
        settings = settings_from(given, {})  # type: ignore[arg-type]
        if settings.embedded:
            raise ValueError(
                "an embedded server belongs to one process, and Spark has many: start one with "
                "apressure.embedded.EmbeddedServer() and give its url"
            )
        return settings


def check_group(group: str) -> None:
    """Raise ValueError if the name of a group is invalid."""
    if not re.fullmatch(r"[^\s:{}]{1,200}", group):
        raise ValueError(
            f"group must be a name of 1 to 200 characters without spaces, colons and braces, not {group!r}"
        )


def spelling(name: str) -> str:
    """Return the name of an option in Spark: `maxRowsPerBatch` for `max_rows_per_batch`."""
    if name == "corrupt_record":
        return "columnNameOfCorruptRecord"  # as in Spark's own sources
    head, *rest = name.split("_")
    return head + "".join(map(str.title, rest))


def table() -> str:
    """Return the documentation of all options as a Markdown table."""
    lines = ["| Option | Of | Default | Meaning |", "| --- | --- | --- | --- |"]
    for field in dataclasses.fields(Options):
        default = "" if field.default is None else f"`{str(field.default).lower()}`"
        of = " ".join(field.metadata["of"].split())
        lines.append(f"| `{spelling(field.name)}` | {of} | {default} | {field.metadata['about']} |")
    return "\n".join(lines) + "\n"


def _from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Read the driver's environment (specification, "Message Brokers"), because the workers' may be different."""
    where = [environment.get(name) or default for name, default in _SERVER.items()]
    url = environment.get("APRESSURE_URL") or "redis://{}:{}/{}".format(*where)
    return {"url": url, "prefix": environment.get("PRESSURE_PREFIX") or DEFAULT_PREFIX}


def _unknown(key: str, fields: Mapping[str, dataclasses.Field[Any]]) -> str:
    if why := _REFUSED.get(key.lower()):
        return why.format(name=key)
    if near := difflib.get_close_matches(key.lower(), fields, 1, 0.5):
        return f"unknown option {key!r}: did you mean {spelling(fields[near[0]].name)!r}?"
    return f"unknown option {key!r}; the options are {', '.join(spelling(field.name) for field in fields.values())}"


def _whole(name: str, text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise ValueError(f"{name} must be a whole number, not {text!r}") from None
    return validation.whole(value, name, 0)


def _seconds(name: str, text: str) -> float:
    number, unit = re.fullmatch(r"(.*?)\s*([a-z]*)\s*", text, re.DOTALL).groups()  # type: ignore[union-attr]
    try:
        value = float(number) * _UNITS[unit or "s"]
    except (KeyError, ValueError):
        units = ", ".join(_UNITS)
        raise ValueError(f"{name} must be a number of seconds, or have a unit of {units}, not {text!r}") from None
    return validation.seconds(value, name, most=_MOST)


def _truth(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{name} must be true or false, not {text!r}")
    return text.lower() == "true"


_READ: Final[Mapping[str, Callable[[str, str], Any]]] = {
    "str": lambda _, text: text,
    "str | None": lambda _, text: text,
    "int": _whole,
    "float": _seconds,
    "float | None": _seconds,
    "bool": _truth,
}
