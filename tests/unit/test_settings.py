"""Arguments, URL and environment: their precedence, and the errors for invalid ones."""

from __future__ import annotations

import os
import re
from typing import Any

import fakeredis
import pytest
import redis
import redis.asyncio
from redis.asyncio.connection import Connection, SSLConnection, UnixDomainSocketConnection

from apressure import AsyncQueue, Client
from apressure.connection.settings import ClientOptions, Settings, client_identity
from apressure.connection.settings import settings_from as resolve_options


def resolve(environment: dict[str, str] | None = None, **options: Any) -> Settings:
    given: ClientOptions = options  # type: ignore[assignment]
    return resolve_options(given, {} if environment is None else environment)


def where(settings: Settings) -> tuple[Any, Any, Any]:
    options = settings.address.connection_options
    return options.get("host"), options.get("port"), options.get("db")


ENVIRONMENT = {"REDIS_SERVER": "env.example", "REDIS_PORT": "7001", "REDIS_DB": "3", "PRESSURE_PREFIX": "env"}


def test_the_defaults_are_those_of_the_specification() -> None:
    settings = resolve()
    assert where(settings) == ("127.0.0.1", 6379, 0)
    assert settings.prefix == "__pressure__"
    assert settings.scripting


def test_the_environment_variables_of_the_specification_are_read() -> None:
    settings = resolve(ENVIRONMENT)
    assert where(settings) == ("env.example", 7001, 3)
    assert settings.prefix == "env"


def test_the_environment_of_the_process_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    assert where(resolve_options({})) == ("env.example", 7001, 3)
    assert AsyncQueue("jobs").prefix == "env"


def test_empty_environment_variables_are_none() -> None:
    settings = resolve(dict.fromkeys(ENVIRONMENT, ""))
    assert where(settings) == ("127.0.0.1", 6379, 0)
    assert settings.prefix == "__pressure__"


def test_a_url_goes_before_the_environment() -> None:
    assert where(resolve(ENVIRONMENT, url="redis://url.example:7002/5")) == ("url.example", 7002, 5)


def test_arguments_go_before_the_environment() -> None:
    assert where(resolve(ENVIRONMENT, host="argument.example")) == ("argument.example", 7001, 3)
    assert where(resolve(ENVIRONMENT, port=7009, db=0)) == ("env.example", 7009, 0)
    assert resolve(ENVIRONMENT, prefix="argument").prefix == "argument"


def test_arguments_go_before_the_url() -> None:
    settings = resolve(
        url="redis://me:one@url.example:7002/5", host="argument.example", port=7003, db=6, password="two"
    )
    assert where(settings) == ("argument.example", 7003, 6)
    assert settings.address.connection_options["username"] == "me"
    assert settings.address.connection_options["password"] == "two"


def test_credentials_of_a_url_are_decoded() -> None:
    options = resolve(url="redis://me:p%40ss%2Fword@h").address.connection_options
    assert (options["username"], options["password"]) == ("me", "p@ss/word")


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("redis://h", Connection),
        ("rediss://h", SSLConnection),
        ("unix:///run/redis.sock", UnixDomainSocketConnection),
    ],
)
def test_the_scheme_selects_the_connection(url: str, kind: type[Any]) -> None:
    assert resolve(url=url).address.connection_class is kind


def test_a_unix_url_names_socket_and_database() -> None:
    settings = resolve(url="unix:///run/redis.sock?db=4")
    assert settings.address.connection_options["path"] == "/run/redis.sock"
    assert settings.address.text == "/run/redis.sock (database 4)"


def test_tls_options_of_a_url_reach_the_connection() -> None:
    settings = resolve(url="rediss://h?ssl_cert_reqs=none&ssl_check_hostname=false")
    assert settings.address.connection_options["ssl_cert_reqs"] == "none"


def test_an_embedded_url_starts_nothing_yet() -> None:
    assert resolve(url="embedded://").embedded_directory is None
    assert resolve(url="embedded:///var/lib/my%20queues").embedded_directory == "/var/lib/my queues"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "must begin with redis://"),
        ("localhost:6379", "must begin with redis://"),
        ("http://localhost", "must begin with redis://.*'http'"),
        ("redis://localhost:port/0", "not valid"),
        ("redis://localhost:0/0", "port must be between 1 and 65535"),
        ("redis://localhost:99999/0", "not valid"),
        ("redis://localhost/zero", "number of a database"),
        ("redis://localhost/-1", "number of a database"),
        ("redis://localhost/1/2", "number of a database"),
        ("redis://localhost/99999999999", "db must be between"),
        ("redis://localhost?db=x", "not valid"),
        ("redis://localhost?colour=red", "'colour'"),
        ("redis://localhost?socket_timeout=3", "must not set socket_timeout"),
        ("redis://localhost?retry_on_timeout=yes", "must not set retry_on_timeout"),
        ("redis://localhost?protocol=3", "must not set protocol"),
        ("redis://localhost?max_connections=3", "must not set max_connections"),
        ("unix://", "names no socket"),
        ("embedded:/dir", "embedded:///some/dir"),
        ("embedded://host/dir", "embedded:///some/dir"),
        ("embedded://?db=3", "embedded:///some/dir"),
    ],
)
def test_an_invalid_url_has_a_clear_error(url: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        resolve(url=url)


@pytest.mark.parametrize("variable", ["REDIS_PORT", "REDIS_DB"])
@pytest.mark.parametrize("text", ["many", "1.5", "-1", "٣"])
def test_a_bad_environment_variable_is_named(variable: str, text: str) -> None:
    with pytest.raises(ValueError, match=variable):
        resolve({variable: text})


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"url": 5}, TypeError, "url must be a string"),
        ({"url": b"redis://h"}, TypeError, "url must be a string"),
        ({"host": 5}, TypeError, "host must be a string"),
        ({"host": ""}, ValueError, "host must not be empty"),
        ({"port": "6379"}, TypeError, "port must be a whole number"),
        ({"port": True}, TypeError, "port must be a whole number"),
        ({"port": 0}, ValueError, "port must be between"),
        ({"port": 65536}, ValueError, "port must be between"),
        ({"db": "0"}, TypeError, "db must be a whole number"),
        ({"db": -1}, ValueError, "db must be between"),
        ({"db": 1.0}, TypeError, "db must be a whole number"),
        ({"username": 5}, TypeError, "username must be a string"),
        ({"password": b"x"}, TypeError, "password must be a string"),
        ({"prefix": 5}, TypeError, "prefix must be a string"),
        ({"prefix": ""}, ValueError, "prefix must not be empty"),
        ({"prefix": "apressure"}, ValueError, "prefix 'apressure' is reserved"),
        ({"prefix": "apressure:mine"}, ValueError, "prefix 'apressure' is reserved"),
        ({"client_id": 5}, TypeError, "client_id must be a string"),
        ({"client_id": ""}, ValueError, "client_id must have"),
        ({"client_id": "x" * 1025}, ValueError, "client_id must have"),
        ({"max_connections": 0}, ValueError, "max_connections must be at least 1"),
        ({"max_connections": True}, TypeError, "max_connections must be a whole number"),
        ({"max_connections": "5"}, TypeError, "max_connections must be a whole number"),
        ({"connect_timeout": 0}, ValueError, "connect_timeout must be more than 0"),
        ({"response_timeout": -1}, ValueError, "response_timeout must be more than 0"),
        ({"response_timeout": "1"}, TypeError, "response_timeout must be a number"),
        ({"settle_timeout": float("nan")}, ValueError, "settle_timeout must be more than 0"),
        ({"settle_timeout": float("inf")}, ValueError, "settle_timeout must be"),
        ({"retry_timeout": 151}, ValueError, "retry_timeout must be between 0 and 150"),
        ({"retry_timeout": False}, TypeError, "retry_timeout must be a number"),
        ({"max_message_size": 0}, ValueError, "max_message_size must be at least 1"),
        ({"max_message_size": 1e6}, TypeError, "max_message_size must be a whole number of bytes"),
        ({"sever": "h"}, TypeError, "unknown option 'sever'.*host"),
        ({"retry_timout": 1}, TypeError, "unknown option 'retry_timout': did you mean 'retry_timeout'?"),
        ({"max_attempt": 3}, TypeError, "unknown option 'max_attempt': did you mean 'max_attempts'?"),
        ({"maxsize": 3}, TypeError, r"unknown option 'maxsize': the bound is an argument of create\(bound=…\)"),
        ({"url": "embedded://", "host": "h"}, ValueError, "an address of its own.*host"),
        ({"url": "unix:///s", "port": 6379}, ValueError, "no host and no port"),
    ],
    ids=lambda value: re.sub(r"\W+", "-", str(value))[:40] if isinstance(value, dict) else "",
)
def test_an_invalid_option_has_a_clear_error(options: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        resolve(**options)
    with pytest.raises(error, match=says):
        AsyncQueue("jobs", **options)
    with pytest.raises(error, match=says):
        Client(**options)


def test_an_option_of_none_is_as_if_it_was_not_given() -> None:
    settings = resolve(ENVIRONMENT, url=None, host=None, port=None, db=None, prefix=None, redis=None, client_id=None)
    assert where(settings) == ("env.example", 7001, 3)


def test_a_queue_takes_a_client_or_options_but_not_both() -> None:
    with pytest.raises(TypeError, match="client= or url"):
        AsyncQueue("jobs", client=Client(), url="redis://h")


def test_a_redis_client_lends_its_server_and_credentials() -> None:
    theirs = redis.asyncio.Redis(host="h", port=7004, db=2, username="me", password="word", socket_timeout=1)
    settings = resolve(ENVIRONMENT, redis=theirs)
    assert where(settings) == ("h", 7004, 2)
    assert settings.address.connection_options["password"] == "word"
    assert "socket_timeout" not in settings.address.connection_options
    assert "retry" not in settings.address.connection_options
    assert settings.prefix == "env"


def test_a_redis_client_with_tls_lends_its_certificates() -> None:
    theirs = redis.asyncio.Redis(host="h", ssl=True, ssl_ca_certs="/ca.pem")
    settings = resolve(redis=theirs)
    assert settings.address.connection_class is SSLConnection
    assert settings.address.connection_options["ssl_ca_certs"] == "/ca.pem"


@pytest.mark.parametrize("also", [{"url": "redis://h"}, {"host": "h"}, {"port": 1}, {"db": 1}, {"password": "x"}])
def test_a_redis_client_has_an_address_of_its_own(also: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="either redis= or the server's address"):
        resolve(redis=redis.asyncio.Redis(), **also)


@pytest.mark.parametrize(
    "other",
    [
        redis.Redis(),
        "redis://h",
        object(),
    ],
    ids=["synchronous", "url", "object"],
)
def test_a_redis_that_is_no_asynchronous_client_is_refused(other: Any) -> None:
    with pytest.raises(TypeError, match="redis must be"):
        resolve(redis=other)


def test_a_synchronous_fakeredis_is_refused() -> None:
    with pytest.raises(TypeError, match="FakeAsyncRedis"):
        resolve(redis=fakeredis.FakeRedis())


def test_each_client_has_an_identity_of_host_process_and_thread_of_its_own() -> None:
    one, two = Client(), Client()
    assert one.id != two.id
    assert one.id == one.id
    host, process, thread, random = client_identity().rsplit(":", 3)
    assert host
    assert int(process) == os.getpid()
    assert int(thread)
    assert random
    assert Client(client_id="me").id == "me"


SECRET = "geh3im"
"""A password. No text that a user may log or show has it."""


@pytest.mark.parametrize(
    "options",
    [
        {"url": f"redis://me:{SECRET}@h:7000/1"},
        {"url": f"rediss://:{SECRET}@h"},
        {"url": f"redis://h?password={SECRET}"},
        {"url": f"unix:///s?password={SECRET}"},
        {"url": f"unix://me:{SECRET}@/run/redis.sock"},
        {"host": "h", "password": SECRET},
        {"redis": redis.asyncio.Redis(password=SECRET)},
    ],
    ids=["url", "tls", "query", "unix", "unix-userinfo", "argument", "redis"],
)
def test_no_repr_shows_the_password(options: dict[str, Any]) -> None:
    settings = resolve(**options)
    assert settings.address.connection_options["password"] == SECRET
    client = Client(**options)
    queue = AsyncQueue("jobs", **options)
    for shown in (settings, client, queue, queue.producer(), queue.consumer(), client.server, client.connection):
        assert SECRET not in repr(shown)
        assert SECRET not in str(shown)
    assert SECRET not in settings.address.text


@pytest.mark.parametrize(
    "url",
    [
        f"http://:{SECRET}@h",
        f"redis://:{SECRET}@h:port",
        f"redis://:{SECRET}@h:99999",
        f"redis://:{SECRET}@h/zero",
        f"redis://:{SECRET}@h?colour=red",
        f"redis://:{SECRET}/x@h:6379/0",
        f"redis://:x/{SECRET}@h:6379/0",
        f"redis://:7/{SECRET}@h:6379/0",
        f"redis://:x?{SECRET}@h:6379/0",
        f"redis://:x#{SECRET}@h:6379/0",
        f"redis://:{SECRET}#x@h:6379/0",
        f"redis://:[{SECRET}@h:6379/0",
        f"redis://:{SECRET}\u2100@h:6379/0",
        f"redis://h?password={SECRET}&db=x",
        f"redis://h?password={SECRET}&colour=red",
        f"redis://h?password={SECRET}&socket_timeout=3",
        f":{SECRET}@h",
        f"//:{SECRET}@h",
        f"embedded://:{SECRET}@h/dir",
    ],
)
def test_no_error_about_a_url_shows_its_password(url: str) -> None:
    with pytest.raises(ValueError, match=r".") as raised:
        resolve(url=url)
    assert SECRET not in str(raised.value)
    assert SECRET not in repr(raised.value)


def test_a_password_with_a_slash_must_be_quoted() -> None:
    with pytest.raises(ValueError, match="%2F"):
        resolve(url=f"redis://:a/{SECRET}@h:6379/0")
