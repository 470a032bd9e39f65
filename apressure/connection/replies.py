"""What a server's error replies mean: text in, the matching exception out. No I/O."""

from __future__ import annotations

import re

from apressure.exceptions import (
    AuthenticationError,
    OutOfMemoryError,
    PermissionDeniedError,
    ReadOnlyError,
    ScriptingRefusedError,
    ServerError,
    ServerTooOldError,
)

NOT_EXECUTED = frozenset({"LOADING", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "NOREPLICAS", "BUSY", "ASK"})
"""Codes of replies that say "not now": the command was not carried out, and may be sent again a little later."""

PASSES = NOT_EXECUTED | {"OOM", "MISCONF", "READONLY"}
"""Codes of refusals that come to an end, if perhaps not soon."""

UNREADABLE = "invalid bulk length"
"""In the reply to a message that is larger than the server reads: no try of that command was carried out."""

# Redis before 7 puts a preface before the error of a command that a script ran.
_FROM_SCRIPT = re.compile(r"ERR Error running script .*?@user_script: ?\d+: -?([A-Z]+ .*)", re.DOTALL)

# Later ones put it behind.
_AT_SCRIPT = re.compile(r",? script: [0-9a-f]{40}, on @user_script:\d+\.?$")

_ERRORS: dict[str, tuple[type[ServerError], str]] = {
    "NOAUTH": (AuthenticationError, "give a password (and username) in the URL or as arguments"),
    "WRONGPASS": (AuthenticationError, "check username and password"),
    "NOPERM": (PermissionDeniedError, "the server's user needs the command and the key"),
    "OOM": (OutOfMemoryError, "raise the server's maxmemory or consume some messages; nothing was written"),
    "WRONGTYPE": (ServerError, "a key of the queue holds something else than a queue does; nothing was written"),
    "MOVED": (ServerError, "the server is a node of a cluster: use cluster= or a redis+cluster:// URL"),
    "CROSSSLOT": (ServerError, "the server is a node of a cluster: use cluster= or a redis+cluster:// URL"),
    "READONLY": (ReadOnlyError, "connect to the primary; nothing was written"),
    "MISCONF": (
        ServerError,
        (
            "the server could not save its data and takes no writes: make room on its disk, or look into its log for "
            "what is wrong; nothing was written"
        ),
    ),
    "NOREPLICAS": (
        ServerError,
        (
            "too few replicas are connected: bring them back, or lower the server's min-replicas-to-write; "
            "nothing was written"
        ),
    ),
    "LOADING": (
        ServerError,
        "the server is reading its data from disk: try again when it is ready; nothing was written",
    ),
    "BUSY": (
        ServerError,
        "another client's script keeps the server busy: wait for it, or end it with SCRIPT KILL; nothing was written",
    ),
    "MASTERDOWN": (
        ServerError,
        "the server is a replica that has lost its primary: connect to the primary; nothing was written",
    ),
    "CLUSTERDOWN": (
        ServerError,
        "the cluster does not serve the queue's slot at present: CLUSTER INFO says why; nothing was written",
    ),
    "TRYAGAIN": (ServerError, "the cluster is moving the queue to another node: try again; nothing was written"),
}


def error_from_reply(text: str) -> ServerError:
    """Turn the text of an error reply into the exception that says what to do."""
    wrapped = _FROM_SCRIPT.match(text)
    if wrapped:
        text = wrapped[1].strip()
    text = _AT_SCRIPT.sub("", text)
    code = text.partition(" ")[0]
    if "unknown command" in text.lower():
        name = text.partition("'")[2].partition("'")[0] or text.partition("`")[2].partition("`")[0]
        if name.upper() in ("EVAL", "EVALSHA"):
            return ScriptingRefusedError(f"the server refuses scripts ({text}): use scripting=False", code=code)
        return ServerTooOldError(
            f"the server lacks the command {name}: apressure needs Redis 6.2 or later, or Valkey", code=code
        )
    if code == "NOPERM" and ("'eval" in text.lower() or "'script" in text.lower()):
        return ScriptingRefusedError(
            f"the server refuses scripts ({text}): allow them to the user, or use scripting=False", code=code
        )
    if "ACL failure in script" in text or "user executing the script" in text:  # Valkey, Redis
        return PermissionDeniedError(
            f"{text} (the server's user needs the command and the key; what the script did before that stays)",
            code="NOPERM",
        )
    if UNREADABLE in text:
        return ServerError(
            f"{text} (the message is larger than the server takes: raise its proto-max-bulk-len, or lower the client's "
            "max_message_size; nothing was written)",
            code=code,
        )
    if "command on a stale replica" in text:  # what MASTERDOWN is inside a script
        code = "MASTERDOWN"
    if "unauthenticated" in text:  # a long command is refused before it is read, let alone looked at
        code = "NOAUTH"
    if code in _ERRORS:
        kind, advice = _ERRORS[code]
        return kind(f"{text} ({advice})", code=code)
    return ServerError(text, code=code if code.isupper() else "ERR")
