"""Clients that do not look for themselves, so that a wake-up which is missing is found."""

from __future__ import annotations

import copy
import functools
import hashlib
import re
from types import ModuleType

import pytest

from apressure.connection import sender
from apressure.connection.waiting import rounds
from apressure.connection.waiting.waiter import Waiter
from apressure.connection.wire.script import Script
from apressure.pressure.engine import waits


def be_patient(patch: pytest.MonkeyPatch, waits: ModuleType = waits) -> None:
    """Have waits that miss a wake-up look again after 10 minutes only: what ends before has missed none.

    `waits` is the module of the kind of queue; of an AsyncQueue by default.
    """
    patch.setattr(waits, "SLICE", 600)
    patch.setattr(waits, "LONG_SLICE", 600)
    patch.setattr(rounds, "ROUND", 600)
    patch.setattr(Waiter.__init__, "__defaults__", (600, None, False))
    original = sender.script

    @functools.cache
    def patient(room: str, name: str) -> Script:
        made = copy.copy(original(room, name))
        made.source, times = re.subn(rb"WATCH_MS = \d+ ", b"WATCH_MS = 600000 ", made.source)
        assert times == made.source.count(b"WATCH_MS = ")  # the usual cases may have it, too
        made.sha = hashlib.sha1(made.source, usedforsecurity=False).hexdigest().encode()
        return made

    patch.setattr(sender, "script", patient)
