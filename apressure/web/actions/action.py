"""What an action of the page is: what it would do, what it asks for, and what it does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from apressure import queue_addresses
from apressure.core.searching import DeadLetterSearch
from apressure.monitor.monitor import Monitor, Seen
from apressure.web.forms import Form, WrongFormError
from apressure.web.jobs import Jobs

TIMEOUT: Final = 5.0
"""Seconds to wait for room, or for a role that another client holds."""

DEADLINE: Final = 60.0
"""Seconds for an action."""

ALL: Final = ("queue", "events", "tasks", "files")
"""The kinds of queue, as in addresses."""

ON_SERVERS: Final = ("queue", "events", "tasks")
"""Those whose server counts for all processes."""


class Field(NamedTuple):
    """Something to type in.

    Attributes:
        name: Its name in the form.
        label: What it is called on the page.
        kind: `number`, `text`, `long` or `choice`.
        optional: It may be left empty.
        choices: Of a choice, what can be chosen: what is sent, and what it is called.
        of_many: It is about many dead letters, so it is not asked for a certain one.
    """

    name: str
    label: str
    kind: str = "number"
    optional: bool = False
    choices: tuple[tuple[str, str], ...] = ()
    of_many: bool = False


class Asking(NamedTuple):
    """What an action is asked about.

    Attributes:
        seen: The queue.
        id: Which dead letter, worker, client, task or job; "" for no certain one.
        search: Which dead letters.
        handles: Of these only those with one of these handles; empty for all of them.
        jobs: The jobs of the page.
        who: Who asks.
        monitor: Knows the other queues.
    """

    seen: Seen
    id: str
    search: DeadLetterSearch
    handles: tuple[str, ...]
    jobs: Jobs
    who: str
    monitor: Monitor

    @property
    def address(self) -> str:
        """The queue's address."""
        return str(self.seen.address)

    def watched(self, text: str) -> Seen:
        """Return the queue whose address was typed in."""
        try:
            address = queue_addresses.read(text.strip())
            beside = address.url is None and address.kind != "files"  # on the server of the queue itself
            if beside and not self.seen.server and self.monitor.many_servers:
                raise WrongFormError(
                    "The page watches several servers. Nothing was put. Write the URL of the server, too."
                )
            found = self.monitor.find(address, self.seen.server if beside else "")
        except (TypeError, ValueError):
            found = None
        if found is None:
            raise WrongFormError(
                "The page does not watch this queue. Nothing was put. Write the address as the list of queues has it, "
                "and for another server its URL, too: redis://host:6379/0/orders."
            )
        return found


class Action(NamedTuple):
    """An action.

    Attributes:
        label: What its button says.
        question: What it would do, with how many messages it would touch.
        do: Does it, and returns what it did.
        fields: What it asks for.
        listed: It is about the queue as a whole, so the page of the queue lists it.
        kinds: The kinds of queue that have it.
        view: The view of the queue where it is done.
        copies: It begins with the contents of a message.
    """

    label: str
    question: Callable[[Asking], Awaitable[str]]
    do: Callable[[Asking, Form], Awaitable[str]]
    fields: tuple[Field, ...] = ()
    listed: bool = True
    kinds: tuple[str, ...] = ALL
    view: str = ""
    copies: bool = False


def said(text: str) -> Callable[[Asking], Awaitable[str]]:
    """Return a question that names the queue, and how many messages it has."""

    async def question(asking: Asking) -> str:
        statistics = await asking.seen.queue.statistics(deadline=DEADLINE)
        return text.format(
            queue=asking.address, waiting=f"{statistics.length:,}", delayed=f"{statistics.delayed:,}",
            in_flight=f"{statistics.in_flight:,}", id=asking.id, limits=statistics.limits,
            bound=f"{statistics.bound:,}" if statistics.bound else "none",
        )  # fmt: skip

    return question
