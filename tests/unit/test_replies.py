"""Error replies of a server become exceptions."""

from __future__ import annotations

import pytest

from apressure.connection.wire.replies import NOT_EXECUTED, error_from_reply
from apressure.exceptions import (
    AuthenticationError,
    OutOfMemoryError,
    PermissionDeniedError,
    ReadOnlyError,
    ScriptingRefusedError,
    ServerError,
    ServerTooOldError,
)

REFUSED = "NOPERM this user has no permissions to run the"
STALE = "ERR Error running script: @user_script:3: Can not execute the command on a stale replica"


@pytest.mark.parametrize(
    ("text", "kind", "code", "says"),
    [
        ("NOAUTH Authentication required.", AuthenticationError, "NOAUTH", "password"),
        ("WRONGPASS invalid username-password pair or user is disabled.", AuthenticationError, "WRONGPASS", "check"),
        (f"{REFUSED} 'lpush' command", PermissionDeniedError, "NOPERM", "user needs"),
        ("NOPERM No permissions to access a key", PermissionDeniedError, "NOPERM", "key"),
        (f"{REFUSED} 'evalsha' command or its subcommand", ScriptingRefusedError, "NOPERM", "scripting=False"),
        ("NOPERM User x has no permissions to run the 'eval' command", ScriptingRefusedError, "NOPERM", "scripting"),
        ("ERR unknown command 'EVALSHA', with args beginning with: ", ScriptingRefusedError, "ERR", "scripting=False"),
        ("ERR unknown command `EVAL`, with args beginning with: `x`", ScriptingRefusedError, "ERR", "scripting=False"),
        ("ERR unknown command 'BLMOVE', with args beginning with: ", ServerTooOldError, "ERR", "BLMOVE.*6.2"),
        ("ERR unknown command `blmove`, with args beginning with: ", ServerTooOldError, "ERR", "blmove.*Valkey"),
        (
            "ERR unknown command 'SCAN', with args beginning with: '0' ",
            ServerTooOldError,
            "ERR",
            "SCAN: name the queues",
        ),
        ("Unknown command called from script script: on @user_script:1.", ServerTooOldError, "ERR", "scripts.*call"),
        (
            "ERR Unknown Redis command called from script script: 104a, on @user_script:1.",
            ServerTooOldError,
            "ERR",
            "6.2",
        ),
        ("OOM command not allowed when used memory > 'maxmemory'.", OutOfMemoryError, "OOM", "nothing was written"),
        ("ERR Protocol error: unauthenticated multibulk length", AuthenticationError, "NOAUTH", "give a password"),
        ("DENIED Redis is running in protected mode because…", AuthenticationError, "DENIED", "mode.*requirepass"),
        ("MISCONF Redis is configured to save RDB snapshots", ServerError, "MISCONF", "disk.*nothing was written"),
        ("NOREPLICAS Not enough good replicas to write.", ServerError, "NOREPLICAS", "min-replicas-to-write"),
        ("LOADING Redis is loading the dataset in memory", ServerError, "LOADING", "when it is ready"),
        ("BUSY Redis is busy running a script.", ServerError, "BUSY", "SCRIPT KILL"),
        ("MASTERDOWN Link with MASTER is down", ServerError, "MASTERDOWN", "connect to the primary"),
        (STALE, ServerError, "MASTERDOWN", "connect to the primary"),
        ("CLUSTERDOWN Hash slot not served", ServerError, "CLUSTERDOWN", "CLUSTER INFO"),
        ("TRYAGAIN Multiple keys request during rehashing of slot", ServerError, "TRYAGAIN", "try again"),
        ("READONLY You can't write against a read only replica.", ReadOnlyError, "READONLY", "primary"),
        ("ERR READONLY You can't write against a read only replica.", ReadOnlyError, "READONLY", "connect to the prim"),
        ("ERR LOADING Redis is loading the dataset in memory", ServerError, "LOADING", "when it is ready"),
        ("ERR OOM command not allowed when used memory > 'maxmemory'.", OutOfMemoryError, "OOM", "consume some"),
        ("ERR READONLYISH", ServerError, "ERR", "READONLYISH"),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", ServerError, "WRONGTYPE", "wrong kind"),
        ("ERR something else", ServerError, "ERR", "something else"),
        ("no code at all", ServerError, "ERR", "no code"),
    ],
)
def test_an_error_reply_becomes_the_error_that_says_what_to_do(
    text: str, kind: type[ServerError], code: str, says: str
) -> None:
    error = error_from_reply(text)
    assert type(error) is kind
    assert error.code == code
    with pytest.raises(kind, match=says):
        raise error


def test_the_text_of_the_server_stays_in_the_error() -> None:
    for text in ("OOM full", "READONLY no", "NOAUTH who", "ERR unknown command 'EVAL'", "WRONGTYPE list"):
        assert text in str(error_from_reply(text))


def test_replies_that_say_not_now_are_known() -> None:
    assert {error_from_reply(f"{code} wait").code for code in NOT_EXECUTED} == NOT_EXECUTED
