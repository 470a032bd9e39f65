"""What the doctor says about a queue, one sentence at a time."""

from __future__ import annotations

import dataclasses
from typing import Literal

from apressure.exceptions import Role

FindingKind = Literal[
    "abandoned_claim", "broken_bound", "broken_statistic", "collision", "dead_letters", "delayed", "doubled_token",
    "expired_lease", "expired_member", "extra_permits", "foreign_entry", "half_created", "half_deleted", "in_flight",
    "leased", "leftovers", "lost_permit", "negative_bound", "orphaned_items", "overfull", "overlong_lease", "paused",
    "spark_batches", "stuck_role", "unconsumed", "unfinished", "waiting_role", "wrong_type",
]  # fmt: skip


How = Literal["automatic", "holder", "by hand", "none"]


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """Something about a queue that a person may want to know.

    Attributes:
        kind: What it is.
        fault: Whether something is wrong. A healthy queue may have findings that are no faults.
        repair: How it can be repaired. `"automatic"`: by `repair`. `"holder"`: by `repair`, given the name of a holder
            that is dead. `"by hand"`: as the advice says. `"none"`: there is nothing to do, or not yet.
        text: What was found.
        advice: What to do; empty where there is nothing to do.
        role: The role concerned; None where it is about no role.
        holder: The identity that the server shows for the role; None where it shows none.
    """

    kind: FindingKind
    fault: bool
    repair: How
    text: str
    advice: str = ""
    role: Role | None = None
    holder: str | None = None
