"""Messages become columns: raw, and JSON with what does not decode set aside."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import pickle
import random
from typing import Any

import pytest

from apressure import CloudEventsCodec, DecodeError, Envelope
from apressure.spark.options import Options

pytestmark = pytest.mark.usefixtures("spark")  # it reads the DDL


def decoder(ddl: str, **options: str) -> Any:
    from pyspark.sql.types import StructType

    from apressure.spark.source.decoding import Decoder

    made = Decoder(Options.of({"queue": "jobs", **options}), StructType.fromDDL(ddl))
    return pickle.loads(pickle.dumps(made))  # it travels


def rows(messages: list[bytes], ddl: str, **options: str) -> list[dict[str, Any]]:
    return decoder(ddl, **options).batch(messages, "jobs", 40).to_pylist()  # type: ignore[no-any-return]


def test_raw_columns_are_what_is_known_without_decoding() -> None:
    assert rows([b"\xff", b""], "body BINARY, queue STRING, sequence BIGINT") == [
        {"body": b"\xff", "queue": "jobs", "sequence": 40},
        {"body": b"", "queue": "jobs", "sequence": 41},
    ]
    assert rows([b"a"], "sequence BIGINT") == [{"sequence": 40}]


@pytest.mark.parametrize(
    ("ddl", "says"),
    [
        ("body INT", "'body' must be BINARY or STRING, not INT"),
        ("payload BINARY", "unknown column 'payload': with format=raw the columns are body BINARY or STRING"),
        ("sequence INT", "must be BIGINT"),
        ("attempts STRING", "must be INT"),
        ("body BINARY, headers MAP<STRING,STRING>", "'headers' comes from the envelope .* needs format=cloudevents"),
        ("body BINARY, _corrupt_record BINARY", "unknown column '_corrupt_record'"),  # nothing is decoded
    ],
)
def test_other_raw_columns_are_refused(ddl: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        decoder(ddl)
    with pytest.raises(ValueError, match="maxAttempts needs messages that are decoded"):
        decoder("body BINARY", maxAttempts="1")


def test_a_body_may_be_text() -> None:
    good = ["é".encode(), b""]
    assert rows(good, "body STRING, attempts INT") == [{"body": "é", "attempts": 1}, {"body": "", "attempts": 1}]
    with pytest.raises(DecodeError, match="the queue 'jobs' is not text in UTF-8: add a column _corrupt_record BINARY"):
        rows([*good, b"\xff"], "body STRING")
    found = rows([b"\xff", *good, b"\xc3"], "body STRING, _corrupt_record BINARY, sequence BIGINT")
    assert [tuple(row.values()) for row in found] == [
        (None, b"\xff", 40),
        ("é", None, 41),
        ("", None, 42),
        (None, b"\xc3", 43),
    ]


def test_the_codec_of_queues_and_spark_read_each_other() -> None:
    codec = CloudEventsCodec("json")
    given = Envelope({"a": 1}, key="k", headers={"traceid": "x"})
    ddl = "body STRING, key STRING, id STRING, put_time TIMESTAMP, headers MAP<STRING, STRING>"
    (row,) = rows([codec.encode(given)], ddl, format="cloudevents")
    headers = {"datacontenttype": "application/json", "traceid": "x"}
    assert (row["body"], row["key"], row["id"], dict(row["headers"])) == ('{"a":1}', "k", given.id, headers)
    assert row["put_time"] is not None
    body = {"body": '{"a":1}', "key": "k", "headers": list(headers.items())}
    (message,) = messages("body STRING, key STRING, headers MAP<STRING, STRING>", body, format="cloudevents")
    back = codec.decode(message)
    assert (back.data, back.key, back.headers) == ({"a": 1}, "k", headers)
    assert back.time is not None


def test_envelopes_become_columns() -> None:
    from apressure.spark.columns import CLOUDEVENTS

    event = (
        b'{"specversion":"1.0","id":"7","source":"/shop","type":"sold","time":"2013-01-01T13:00:00+01:00",'
        b'"partitionkey":"k","traceid":"a","n":3,"datacontenttype":"text/plain","data":"\xc3\xa9"}'
    )
    least = b'{"specversion":"1.0","id":"8","source":"s","type":"t"}'
    ddl = (
        "body STRING, key STRING, put_time TIMESTAMP, headers MAP<STRING,STRING>, id STRING, type STRING, queue STRING"
    )
    full, empty = rows([event, least], ddl, format="cloudevents")
    assert full["put_time"].timestamp() == 1357041600
    assert dict(full["headers"]) == {"traceid": "a", "n": "3", "datacontenttype": "text/plain"}
    assert [full[name] for name in ("body", "key", "id", "queue")] == ["é", "k", "7", "jobs"]
    assert [empty[name] for name in ("body", "key", "put_time", "headers", "id")] == [None, None, None, [], "8"]
    (row,) = rows([event], CLOUDEVENTS.simpleString()[7:-1], format="cloudevents")
    assert (row["body"], row["source"], row["type"], row["sequence"]) == ("é".encode(), "/shop", "sold", 40)
    bad = [b"oops", least.replace(b"1.0", b"2"), least[:-1] + b',"data_base64":"/w=="}']
    for one, says in zip(bad, ("it is not JSON", "no specversion 1.0", "whose data is not text"), strict=True):
        with pytest.raises(DecodeError, match=says):
            rows([one], ddl, format="cloudevents")
        found = rows([least, one, event], "body STRING, id STRING, _corrupt_record BINARY", format="cloudevents")
        assert [(row["id"], row["_corrupt_record"]) for row in found] == [("8", None), (None, one), ("7", None)]


def test_json_columns_of_many_types() -> None:
    ddl = (
        "a INT, b STRING, c DOUBLE, d BOOLEAN, e TIMESTAMP, f DATE, g ARRAY<BIGINT>, h STRUCT<x: INT>, i DECIMAL(10,2)"
    )
    message = (
        b'{"a":1,"b":"\xc3\xa9","c":1.5,"d":true,"e":"2013-01-01T05:00:00Z","f":"2013-01-02",'
        b'"g":[1,2],"h":{"x":3},"i":1.25,"other":0}'
    )
    found, nothing = rows([message, b"{}"], ddl, format="json")
    assert found["e"].timestamp() == 1357016400
    assert (found["f"], found["i"]) == (dt.date(2013, 1, 2), decimal.Decimal("1.25"))
    assert [found[name] for name in "abcdgh"] == [1, "é", 1.5, True, [1, 2], {"x": 3}]
    assert set(nothing.values()) == {None}


GOOD = [b'{"a":%d}' % number for number in range(7)]
BAD = [
    b"", b"nonsense", b"[1]", b'{"a":1}{"a":2}', b'{"a":"x"}', b'{"a":1', b'{"a":"\xff"}', b'{"a":"x}', b'{"a":1.5}',
    b"null",
    b'{"a":{"a":2}', b'}', b"{", b'{"a":99999999999999999999}',
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD)
def test_a_message_that_does_not_decode_is_set_aside_alone(bad: bytes) -> None:
    for place in (0, 3, 7):
        messages = [*GOOD[:place], bad, *GOOD[place:]]
        found = rows(messages, "a INT, _corrupt_record BINARY, _sequence BIGINT", format="json")
        assert [row["a"] for row in found] == [*range(place), None, *range(place, 7)]
        assert [row["_corrupt_record"] for row in found] == [None] * place + [bad] + [None] * (7 - place)
        assert [row["_sequence"] for row in found] == list(range(40, 48))


def test_bad_messages_never_make_good_ones_together() -> None:
    rng = random.Random(5)
    pieces = [b'{"a":1}', b'{"a":{', b'}', b'"', b"\n", b"{", b'{"a":1', b' ', b'{"a":"']  # fmt: skip
    for _ in range(300):
        messages = [b"".join(rng.choices(pieces, k=rng.randint(0, 4))) for _ in range(rng.randint(1, 6))]
        found = rows(messages, "a INT, _corrupt_record BINARY", format="json")
        for message, row in zip(messages, found, strict=True):
            try:
                good = isinstance(value := json.loads(message), dict) and isinstance(value.get("a"), int | None)
            except ValueError:
                good = False
            assert (row["_corrupt_record"] is None) == good
            assert row["a"] == (value.get("a") if good else None)


def test_spaces_around_an_object_do_no_harm() -> None:
    assert rows([b' {"a":1}\n', b'{\n"a": 2}'], "a INT, _corrupt_record STRING", format="json") == [
        {"a": 1, "_corrupt_record": None},
        {"a": 2, "_corrupt_record": None},
    ]


def test_without_a_column_for_it_a_bad_message_is_an_error() -> None:
    with pytest.raises(DecodeError, match="add a column why BINARY"):
        rows([*GOOD, b"bad"], "a INT", format="json", columnNameOfCorruptRecord="why")


def test_a_bad_message_as_text() -> None:
    assert rows([b"\xff"], "a INT, why STRING", format="json", columnNameOfCorruptRecord="why")[0]["why"] == "\ufffd"


def test_an_empty_batch() -> None:
    assert rows([], "a INT, _corrupt_record BINARY", format="json") == []


@pytest.mark.parametrize(
    ("ddl", "says"),
    [("a INT NOT NULL", "nullable"), ("a MAP<STRING, INT>", "maps"), ("a INT, _corrupt_record INT", "must be BINARY")],
)
def test_schemas_that_do_not_fit(ddl: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        decoder(ddl, format="json")


def messages(ddl: str, row: dict[str, Any], **options: str) -> list[bytes]:
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    from apressure.spark.encoding import Encoder

    schema = StructType.fromDDL(ddl)
    made = pickle.loads(pickle.dumps(Encoder(Options.of({"queue": "jobs", **options}), schema)))
    batch = pa.RecordBatch.from_pylist([row], to_arrow_schema(schema, timezone="UTC"))
    return [bytes(one) for one in made.messages(batch).cast(pa.binary()).to_pylist()]


def test_rows_become_events() -> None:
    row = {"body": b"\xff", "queue": "elsewhere", "sequence": 7, "attempts": 3, "put_time": None, "to": "x"}
    ddl = "body BINARY, queue STRING, sequence BIGINT, attempts INT, put_time TIMESTAMP, to STRING"
    (message,) = messages(ddl, row, format="cloudevents", queueColumn="to")
    event = json.loads(message)
    assert abs(dt.datetime.now(dt.UTC) - dt.datetime.fromisoformat(event["time"])) < dt.timedelta(minutes=5)
    assert event.keys() == {"specversion", "id", "source", "type", "time", "data_base64"}
    (message,) = messages("body STRING", {"body": None}, format="cloudevents")
    assert json.loads(message).keys() == {"specversion", "id", "source", "type", "time"}


@pytest.mark.parametrize(
    ("column", "value", "format", "says"),
    [
        ("key STRING", "", "cloudevents", "a row cannot be a CloudEvent: key must not be empty"),
        ("headers MAP<STRING,STRING>", [("Trace-Id", "x")], "cloudevents", "'Trace-Id' cannot be the name of a header"),
        ("key INT", 1, "cloudevents", "the column 'key' must be STRING, not INT"),
        ("other INT", 1, "cloudevents", "unknown column 'other': with format=cloudevents"),
        ("key STRING", "k", "raw", "'key' comes from the envelope of a message: it needs format=cloudevents"),
        ("other INT", 1, "raw", "unknown column 'other': with format=raw"),
        ("m MAP<STRING,STRING>", [], "json", "maps cannot be written"),
    ],
)
def test_rows_that_cannot_be_messages(column: str, value: Any, format: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        messages(f"body STRING, {column}", {"body": "a", column.split(maxsplit=1)[0]: value}, format=format)


@pytest.mark.parametrize(
    ("ddl", "options", "row"),
    [
        (
            "t TIMESTAMP, n ARRAY<INT>, _queue STRING, _sequence BIGINT, _attempts INT, _corrupt_record BINARY",
            {"format": "json", "endTimeColumn": "t"},
            {"t": dt.datetime(2262, 1, 1, tzinfo=dt.UTC)},
        ),
        ("n INT, t TIMESTAMP_NTZ", {"format": "json", "endTimeColumn": "t"}, {"t": dt.datetime(2262, 1, 1)}),  # noqa: DTZ001
        (
            "body BINARY, put_time TIMESTAMP, headers MAP<STRING, STRING>, key STRING",
            {"format": "cloudevents", "endTimeColumn": "put_time"},
            {"put_time": dt.datetime(2262, 1, 1, tzinfo=dt.UTC)},
        ),
        ("queue STRING, body STRING", {"endMessage": "größer"}, {"body": "größer"}),
        ("body BINARY, attempts INT", {"endMessage": "größer"}, {"body": "größer".encode()}),
    ],
)
def test_the_row_that_ends_a_stream(ddl: str, options: dict[str, str], row: dict[str, Any]) -> None:
    """All columns but one are NULL, those of the queue and of what cannot be decoded, too."""
    made = decoder(ddl, **options)
    parsed = Options.of({"queue": "jobs", **options})
    made.check_end(parsed)
    batch = made.end_row(parsed)
    (found,) = batch.to_pylist()
    assert {name: value for name, value in found.items() if value is not None} == row
    assert batch.schema == made.batch([], "jobs", 0).schema
