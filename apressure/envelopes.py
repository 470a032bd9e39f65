"""The envelope of a message: a CloudEvent (CloudEvents 1.0, JSON event format) that holds the message as its data.

An envelope has what a message alone has no place for: when it was put, its key, and headers. No I/O.

| field of `Envelope` | member of the JSON object |
| --- | --- |
| `id`, `source`, `type` | the same |
| `time` | `time` (RFC 3339) |
| `key` | `partitionkey` |
| `headers` | `datacontenttype`, `dataschema`, `subject`, and every extension attribute |
| `data` | `data` where its content type is JSON or text, otherwise `data_base64` |
"""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import json
import re
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")

CONTENT_TYPE: Final = "datacontenttype"
"""The header that says what the data is, for example `application/json`."""
_FIELDS: Final = frozenset({"specversion", "id", "source", "type", "time", "partitionkey", "data", "data_base64"})
_NAME: Final = re.compile(r"[a-z0-9]{1,100}")
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")
_SPACE: Final = re.compile(r"[ \t\n\r]*")
_JSON: Final = re.compile(r"[^;/]+/([^;]+\+)?json\s*(;.*)?", re.IGNORECASE)
_TEXT: Final = re.compile(r"text/[^;]+(;\s*charset\s*=\s*\"?utf-8\"?\s*)?", re.IGNORECASE)


@dataclasses.dataclass(frozen=True, slots=True)
class Envelope(Generic[T]):
    """A message and what is known about it.

    Attributes:
        data: The message: bytes, or what the codec of the queue takes. None for an event without data.
        key: What the message is about, such as a customer: messages of one key belong together.
        time: When the message was put, with a time zone. A codec sets it if it is None.
        headers: Further attributes. Their names have only a to z and 0 to 9.
        id: The event's id: unique for each `source`.
        source: Where the event comes from, a URI reference.
        type: What kind of event it is.
    """

    data: T | None
    key: str | None = None
    time: dt.datetime | None = None
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    id: str = dataclasses.field(default_factory=lambda: str(uuid.uuid4()))
    source: str = "apressure"
    type: str = "message"


def encode(envelope: Envelope[bytes]) -> bytes:
    """Return an envelope as a JSON object in UTF-8.

    Raises:
        ValueError: It is no valid event: a name or a time is invalid, a text is empty, or the data is not what the
            header `datacontenttype` says.
    """
    event: dict[str, Any] = {"specversion": "1.0"}
    for name in ("id", "source", "type"):
        if not getattr(envelope, name):
            raise ValueError(f"{name} must not be empty")
        event[name] = getattr(envelope, name)
    if envelope.time is not None:
        if envelope.time.tzinfo is None:
            raise ValueError("time needs a time zone")
        event["time"] = envelope.time.astimezone(dt.UTC).isoformat().replace("+00:00", "Z")
    if envelope.key is not None:
        if not envelope.key:
            raise ValueError("key must not be empty: leave it out")
        event["partitionkey"] = envelope.key
    for name, value in envelope.headers.items():
        if name in _FIELDS or not _NAME.fullmatch(name):
            raise ValueError(
                f"{name!r} cannot be the name of a header: CloudEvents allows a to z and 0 to 9, and not the names of "
                "its own attributes"
            )
        event[name] = value
    text = _dump(event)
    if envelope.data is not None:
        text = f"{text[:-1]},{_member(envelope.data, envelope.headers.get(CONTENT_TYPE, ''))}}}"
    return text.encode()


def decode(message: bytes) -> Envelope[bytes]:
    """Return the envelope of a message.

    JSON data comes as its text, with all digits of its numbers. With the header `datacontenttype: text/plain` the data
    `"a"` is the message `a`, and without that header, which means JSON, it is `"a"`.

    Raises:
        ValueError: The message is no CloudEvent 1.0 in JSON. The error does not show the message.
    """
    rounded: list[str] = []

    def number(text: str) -> float:
        value = float(text)
        if repr(value) != text:
            rounded.append(text)
        return value

    event = _load(message, "it is not JSON", number)
    if not isinstance(event, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 (an error of the message)
    if b"\\u" in message and not _is_unicode(event):
        raise ValueError("it is not valid Unicode")
    if event.get("specversion") != "1.0":
        raise ValueError("it has no specversion 1.0")
    for name in ("id", "source", "type"):
        if not isinstance(event.get(name), str) or not event[name]:
            raise ValueError(f"its {name} is missing, or not text")
    attributes = {
        name: _attribute(value)
        for name, value in event.items()
        if name not in ("data", "data_base64") and value is not None
    }
    return Envelope(
        data=_data(event, attributes.get(CONTENT_TYPE, ""), message if rounded else b""),
        key=attributes.get("partitionkey") or None,
        time=_time(attributes["time"]) if "time" in attributes else None,
        headers={name: value for name, value in attributes.items() if name not in _FIELDS},
        id=attributes["id"],
        source=attributes["source"],
        type=attributes["type"],
    )


def _member(data: bytes, content_type: str) -> str:
    """Return the member of the JSON object that holds the data."""
    try:
        if _JSON.fullmatch(content_type):
            value = _load(data, f"the data is not JSON, as the header {CONTENT_TYPE} says")
            # As the member `data`, null would be an event without data, and half of a surrogate pair is refused.
            if value is not None and (b"\\u" not in data or _is_unicode(value)):
                return f'"data":{data.decode()}'
        elif _TEXT.fullmatch(content_type):
            return f'"data":{_dump(data.decode())}'
    except UnicodeDecodeError:
        raise ValueError(f"the data is not text in UTF-8, as the header {CONTENT_TYPE} says") from None
    return f'"data_base64":"{base64.b64encode(data).decode()}"'


def _data(event: Mapping[str, Any], content_type: str, message: bytes) -> bytes | None:
    """Return the data of an event. `message`: its text, if that has a number with more digits than a float."""
    encoded, value = event.get("data_base64"), event.get("data")
    if encoded is not None:
        if value is not None:
            raise ValueError("it has both data and data_base64")
        try:
            return base64.b64decode(encoded, validate=True)
        except (TypeError, ValueError):
            raise ValueError("its data_base64 is not Base64") from None
    if value is None:
        return None
    is_text = isinstance(value, str) and content_type and not _JSON.fullmatch(content_type)
    if is_text:
        return str(value).encode()
    return (_text_of_data(message.decode()) if message else _dump(value)).encode()


def _text_of_data(text: str) -> str:
    """Return the text of the last member `data` of a JSON object that has members."""
    parse = json.JSONDecoder().raw_decode
    found, at = "", text.index("{") + 1
    while True:
        name, at = parse(text, _skip(text, at))
        begin = _skip(text, _skip(text, at) + 1)  # behind the colon
        _, end = parse(text, begin)
        found = text[begin:end] if name == "data" else found
        at = _skip(text, end) + 1
        if text[at - 1] == "}":
            return found


def _skip(text: str, at: int) -> int:
    """Return where the space ends that begins there."""
    return _SPACE.match(text, at).end()  # type: ignore[union-attr]


def _attribute(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, int):
        raise ValueError("an attribute is neither text, a whole number, true nor false")  # noqa: TRY004
    return str(value)


def _time(text: str) -> dt.datetime:
    try:
        if _TIME.fullmatch(text):
            return dt.datetime.fromisoformat(text.upper()).astimezone(dt.UTC)
    except (ValueError, OverflowError):
        pass
    raise ValueError("its time is not a time of RFC 3339")


def _dump(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except RecursionError:
        raise ValueError("its data is nested too deeply") from None


def _is_unicode(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # JSON can spell half of a surrogate pair
        return False
    except RecursionError:
        raise ValueError("its data is nested too deeply") from None
    return True


def _load(text: bytes, otherwise: str, number: Callable[[str], float] = float) -> Any:
    try:
        return json.loads(text.decode(), parse_constant=_refuse, parse_float=number)
    except (ValueError, RecursionError):
        raise ValueError(otherwise) from None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")
