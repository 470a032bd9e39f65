"""Turns a server's error replies into exceptions. No I/O."""

from __future__ import annotations

import re

from apressure import exceptions as errors

NOT_EXECUTED = errors.TEMPORARY_CODES - {"OOM", "MISCONF", "READONLY"}
"""Codes of temporary refusals: the command was not executed, and may be sent again a little later."""

UNREADABLE = "invalid bulk length"
"""The text of the reply to a message that is too large for the server. No try of that command was executed."""

# Patterns are not compiled here: that would take time at the import.
# Redis before 7 puts this before the error of a command that a script ran.
_FROM_SCRIPT = r"(?s)ERR Error running script .*?@user_script: ?\d+: -?([A-Z]+ .*)"

# Later versions put this behind the error.
_AT_SCRIPT = r",? script: [0-9a-f]{40}, on @user_script:\d+\.?$"

_KINDS: dict[str, type[errors.ServerError]] = {
    "NOAUTH": errors.AuthenticationError,
    "WRONGPASS": errors.AuthenticationError,
    "NOPERM": errors.PermissionDeniedError,
    "OOM": errors.OutOfMemoryError,
    "READONLY": errors.ReadOnlyError,
}

_IS_CLUSTER = "the server is a node of a cluster: use cluster= or a redis+cluster:// URL"
_ADVICE = {
    "NOAUTH": "give a password (and username) in the URL or as arguments",
    "WRONGPASS": "check username and password",
    "NOPERM": "the server's user needs the command and the key",
    "MOVED": _IS_CLUSTER,
    "CROSSSLOT": _IS_CLUSTER,
}
_NOTHING_WRITTEN = {
    "OOM": "raise the server's maxmemory or consume some messages",
    "WRONGTYPE": "a key of the queue has a value that is not a queue's: delete it, or choose another name",
    "READONLY": "connect to the primary",
    "MISCONF": "the server could not save its data and takes no writes: make room on its disk, or see its log",
    "NOREPLICAS": "too few replicas are connected: bring them back, or lower the server's min-replicas-to-write",
    "LOADING": "the server is reading its data from disk: try again when it is ready",
    "BUSY": "another client's script keeps the server busy: wait for it, or end it with SCRIPT KILL",
    "MASTERDOWN": "the server is a replica without a connection to its primary: connect to the primary",
    "CLUSTERDOWN": "the cluster does not serve the queue's slot now: CLUSTER INFO says why",
    "TRYAGAIN": "the cluster is moving the queue to another node: try again",
}
_ADVICE |= {code: f"{advice}; nothing was written" for code, advice in _NOTHING_WRITTEN.items()}

_NEEDED = "apressure needs Redis 6.2 or later, or Valkey"
_NO_SCRIPTS = "allow EVAL and EVALSHA to the user; an AsyncQueue puts and gets without them, with scripting=False"

# Some proxies put ERR before the server's words.
_FROM_PROXY = rf"ERR (?=({'|'.join(_ADVICE)}) )"


def error_from_reply(text: str) -> errors.ServerError:
    """Return the exception for the text of an error reply; its message says what to do."""
    wrapped = re.match(_FROM_SCRIPT, text)
    if wrapped:
        text = wrapped[1].strip()
    text = re.sub(_FROM_PROXY, "", re.sub(_AT_SCRIPT, "", text))
    code = text.partition(" ")[0]
    if "unknown command called" in text.lower() or "unknown redis command called" in text.lower():
        return errors.ServerTooOldError(
            f"the server lacks a command that scripts of apressure call: {_NEEDED}", code="ERR"
        )
    if "unknown command" in text.lower():
        text = text.partition(", with args")[0]
        name = text.partition("'")[2].partition("'")[0] or text.partition("`")[2].partition("`")[0]
        if name.upper() in ("EVAL", "EVALSHA"):
            return errors.ScriptingRefusedError(f"the server refuses scripts ({text}): {_NO_SCRIPTS}", code=code)
        need = "name the queues, because they cannot be listed" if name.upper() == "SCAN" else _NEEDED
        return errors.ServerTooOldError(f"the server lacks the command {name}: {need}", code=code)
    if code == "NOPERM" and ("'eval" in text.lower() or "'script" in text.lower()):
        return errors.ScriptingRefusedError(f"the server refuses scripts ({text}): {_NO_SCRIPTS}", code=code)
    if code == "DENIED":  # the server's own text is a paragraph, which advises to switch the protection off
        return errors.AuthenticationError(
            "the server is in protected mode: it takes connections from its own machine only. Give it a password "
            "(requirepass), and the password to its clients",
            code=code,
        )
    if "command on a stale replica" in text:  # MASTERDOWN inside a script
        code = "MASTERDOWN"
    if "unauthenticated" in text:  # a long command is refused before it is read
        code = "NOAUTH"
    advice = _ADVICE.get(code)
    if "ACL failure in script" in text or "user executing the script" in text:  # Valkey, Redis
        code = "NOPERM"
        advice = "the server's user needs the command and the key; what the script did before is not undone"
    elif UNREADABLE in text:
        advice = (
            "the message is larger than the server takes: raise its proto-max-bulk-len, or lower the client's "
            "max_message_size; nothing was written"
        )
    kind = _KINDS.get(code, errors.ServerError)
    return kind(f"{text} ({advice})" if advice else text, code=code if code.isupper() else "ERR")
