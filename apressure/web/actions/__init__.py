"""What operators may change, by the names in URLs. A new action goes into the module of what it changes."""

from __future__ import annotations

from typing import Final

from apressure.web.actions.action import DEADLINE, Action, Asking
from apressure.web.actions.letters import LETTERS
from apressure.web.actions.limits import LIMITS
from apressure.web.actions.messages import MESSAGES
from apressure.web.actions.queues import QUEUES
from apressure.web.actions.repairs import REPAIRS
from apressure.web.actions.workers import WORKERS

__all__ = ["ACTIONS", "DEADLINE", "Asking"]

ACTIONS: Final[dict[str, Action]] = {**QUEUES, **LIMITS, **LETTERS, **MESSAGES, **REPAIRS, **WORKERS}
