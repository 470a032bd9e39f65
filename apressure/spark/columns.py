"""The columns of each format, for reading and for writing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

Types = Mapping[str, tuple[DataType, ...]]
"""The types that each column may have, by its name."""

_TEXT: Final = (StringType(),)
BODY: Final = (BinaryType(), StringType())
"""The types of a message: as it is, or as text in UTF-8."""
ABOUT: Final[Types] = {"queue": _TEXT, "sequence": (LongType(),), "attempts": (IntegerType(),)}
"""What is known without decoding. The sequence counts the messages that the group has read from the queue."""
ENVELOPE: Final[Types] = {
    "key": _TEXT,
    "put_time": (TimestampType(),),
    "headers": (MapType(StringType(), StringType()), MapType(StringType(), StringType(), valueContainsNull=False)),
    "id": _TEXT,
    "source": _TEXT,
    "type": _TEXT,
}
"""What the envelope of a message has, with `format=cloudevents`."""


def _struct(types: Types) -> StructType:
    return StructType([StructField(name, allowed[0]) for name, allowed in types.items() if name != "attempts"])


RAW: Final = _struct({"body": BODY, **ABOUT})
"""The columns of `format=raw`, if the user gives no schema."""
CLOUDEVENTS: Final = _struct({"body": BODY, **ENVELOPE, **ABOUT})
"""The columns of `format=cloudevents`, if the user gives no schema."""


def known(format: str) -> Types:
    """Return the columns of messages in a format that is not `json`."""
    return {"body": BODY, **(ENVELOPE if format == "cloudevents" else {}), **ABOUT}


def check(field: StructField, allowed: tuple[DataType, ...]) -> None:
    """Raise ValueError if a column has another type."""
    kind = StringType() if isinstance(field.dataType, StringType) else field.dataType  # with any collation
    if kind not in allowed:
        names = " or ".join(dict.fromkeys(one.simpleString().upper() for one in allowed))
        raise ValueError(f"the column {field.name!r} must be {names}, not {field.dataType.simpleString().upper()}")


def unknown(name: str, format: str) -> str:
    """Say why there is no such column."""
    if name in ENVELOPE:
        return f"the column {name!r} comes from the envelope of a message: it needs format=cloudevents"
    names = ", ".join(
        f"{one} {' or '.join(dict.fromkeys(kind.simpleString().upper() for kind in allowed))}"
        for one, allowed in known(format).items()
    )
    return f"unknown column {name!r}: with format={format} the columns are {names}, or some of these"


def has_type(kind: DataType, *types: type[DataType]) -> bool:
    """Whether a type is one of these, or contains one."""
    if isinstance(kind, ArrayType):
        return has_type(kind.elementType, *types)
    if isinstance(kind, StructType):
        return any(has_type(field.dataType, *types) for field in kind.fields)
    return isinstance(kind, types)
