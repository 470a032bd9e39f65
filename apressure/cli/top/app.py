"""The app behind `apressure top`: the table, the keys, and what they do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from rich.console import RenderableType
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.widgets import Footer, Input, Static

from apressure.cli.exits import HANDLED, Exit, message_of
from apressure.cli.show import printable
from apressure.cli.top import actions, details
from apressure.cli.top.screens import Question, QueuePage, Workers
from apressure.cli.top.table import QueueTable
from apressure.cli.top.view import View
from apressure.concurrency import background
from apressure.concurrency.backoff import pause_until
from apressure.core.workers import WorkerStatistics
from apressure.monitor.monitor import Seen

_PAUSE: Final = 0.25
"""Seconds between two updates of the screen, at least."""

_SHARE: Final = 25
"""An update that took so many seconds is followed by so many times as many without one."""

_CLOCK: Final = 1.0
"""Seconds after which the screen is updated without news."""

_CHANGES: Final = frozenset({"pause", "requeue", "drain", "stack"})
_ON_ONE_LINE: Final = frozenset({"heading", "totals"})
_ON_THE_TABLE: Final = frozenset({"sort", "filter", "details"})


class Top(App[int]):
    """Shows queues until it is told to quit; the result is the exit code.

    Args:
        view: What it shows.
        read_only: Offer nothing that changes a queue.
    """

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #heading, #totals { height: 1; }
    #totals { text-style: bold; }
    #failures { color: red; }
    #message { color: cyan; }
    QueueTable { height: 1fr; }
    Input { height: 1; border: none; padding: 0; }
    """
    BINDINGS = [  # noqa: RUF012 (Textual reads it)
        Binding("enter", "details", "Details"),
        Binding("p", "pause", "Pause"),
        Binding("d", "letters", "Dead letters"),
        Binding("r", "requeue", "Requeue"),
        Binding("w", "workers", "Workers"),
        Binding("slash", "filter", "Filter", key_display="/", priority=True),  # before what is typed next
        Binding("s", "sort('state')", show=False),
        Binding("a", "sort('age')", show=False),
        Binding("t", "sort('rate')", show=False),
        Binding("n", "sort('name')", show=False),
        Binding("l", "sort('length')", show=False),
        Binding("escape", "no_filter", show=False),
        Binding("question_mark", "keys", "Help", key_display="?"),
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "interrupt", show=False, priority=True),
    ]

    def __init__(self, view: View, *, read_only: bool = False) -> None:
        super().__init__()
        self._view = view
        self._read_only = read_only
        self._table = QueueTable(view)
        self._lines = {name: Static(id=name, markup=False) for name in ("heading", "totals", "failures", "message")}
        self._said: dict[str, str] = {}

    def compose(self) -> ComposeResult:
        *above, message = self._lines.values()
        yield from above
        yield self._table
        yield message
        yield Input(placeholder="a part of an address or of a state", select_on_focus=False)
        yield Footer()

    async def on_mount(self) -> None:
        """Begin to show what was seen."""
        asyncio.get_running_loop().set_task_factory(None)  # Textual's starts tasks at once, which ours do not expect
        self.animation_level = "none"
        self.on_input_submitted()
        self.run_worker(self._follow(), exit_on_error=True)

    async def _follow(self) -> None:
        """Show what was seen, as soon as there is something new."""
        looked = self._view.monitor.reader.looked
        while True:
            looked.clear()
            began = time.process_time()
            self.show()
            await asyncio.sleep(max(_PAUSE, _SHARE * (time.process_time() - began)))
            await pause_until(looked, _CLOCK)

    def show(self) -> None:
        """Show what was seen."""
        self._view.update()
        self._arranged()

    def _arranged(self) -> None:
        """Show the queues in the order that they have now."""
        view, table = self._view, self._table
        self._say("heading", view.heading() + ("  read only" if self._read_only else ""))
        self._say("totals", view.totals())
        self._say("failures", view.failures())
        table.empty = "no queue matches the filter" if view.filter else view.nothing()
        table.update()
        wanted = set() if view.left else {one.sampler for one in table.visible_rows}  # first, look at each one once
        if (seen := self.current) is not None:
            wanted.add(seen.sampler)
        view.monitor.reader.prefer(wanted)

    def _say(self, where: str, text: str) -> None:
        line, alone = self._lines[where], where in _ON_ONE_LINE
        if self._said.get(where) == text or not line.is_attached:  # it is gone when the program ends
            return
        self._said[where] = text
        line.update(Text(text, no_wrap=alone, overflow="ellipsis"), layout=not alone)  # a layout takes long
        line.display = bool(text)

    @property
    def current(self) -> Seen | None:
        """The queue that keys are about: that of the page, or the one under the cursor."""
        for screen in reversed(self.screen_stack):
            if (address := getattr(screen, "address", None)) is not None:
                return self._view.seen(address)
        return self._table.current

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 (Textual's)
        """Offer what is possible here."""
        if action in _CHANGES and self._read_only:
            return False
        if action in {"drain", "stack"}:
            return (seen := self.current) is not None and actions.can_drain(seen)
        if action == "filter" and isinstance(self.focused, Input):
            return False
        return action not in _ON_THE_TABLE or len(self.screen_stack) == 1

    def action_sort(self, sort: Any) -> None:
        """Put the queues in another order."""
        self._view.sort = sort
        self._view.arrange()
        self._table.first()
        self._arranged()

    def action_filter(self) -> None:
        """Ask for a filter."""
        field = self.query_one(Input)
        field.display = True
        self.screen.set_focus(field)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while somebody types."""
        self._view.filter = event.value
        self._view.arrange()
        self._arranged()

    def on_input_submitted(self) -> None:
        """Go on with the queues that match."""
        self.screen.set_focus(self._table)
        self.query_one(Input).display = False

    def action_no_filter(self) -> None:
        """Show all queues again."""
        if len(self.screen_stack) == 1:
            self.query_one(Input).value = ""
            self.on_input_submitted()

    def action_interrupt(self) -> None:
        """End as Ctrl-C ends other commands."""
        self.exit(int(Exit.INTERRUPTED))

    def action_details(self) -> None:
        """Show the page of a queue."""

        async def content(seen: Seen) -> RenderableType:
            lengths = self._view.trend(seen.address)
            return await details.queue_page(seen, lengths, self._view.monitor.finder, read_only=self._read_only)

        self._open("Details of ", content)

    def action_letters(self) -> None:
        """Show dead letters."""
        finder = self._view.monitor.finder
        self._open("Dead letters of ", lambda seen: details.letters_page(seen, finder))

    def action_workers(self) -> None:
        """Show workers."""
        if (seen := self.current) is not None and not isinstance(self.screen, Workers):
            address = seen.address
            self.push_screen(Workers(address, lambda: self._view.seen(address)))

    def action_keys(self) -> None:
        """Show the keys."""
        if len(self.screen_stack) > 1:
            return

        async def content() -> RenderableType:
            return details.help_page(read_only=self._read_only)

        self.push_screen(QueuePage(None, "Keys", content, 3600))

    def _open(self, title: str, content: Callable[[Seen], Awaitable[RenderableType]]) -> None:
        """Show a page about the queue under the cursor."""
        if (chosen := self.current) is None:
            return
        address = chosen.address

        async def made() -> RenderableType:
            seen = self._view.seen(address)
            return Text(f"{printable(str(address))} is gone") if seen is None else await content(seen)

        while len(self.screen_stack) > 1:
            self.pop_screen()
        self.push_screen(QueuePage(address, f"{title}{address}", made))

    def action_pause(self) -> None:
        """Pause a queue, or resume it."""
        self._change(actions.pause)

    def action_requeue(self) -> None:
        """Move dead letters back."""
        finder = self._view.monitor.finder
        self._change(lambda seen: actions.requeue(seen, finder))

    def action_drain(self) -> None:
        """Have a worker end."""
        self._change_worker(actions.drain)

    def action_stack(self) -> None:
        """Ask a worker for its stack."""
        self._change_worker(actions.stack)

    def _change_worker(self, wanted: Callable[[Seen, WorkerStatistics], Awaitable[actions.Change]]) -> None:
        screen = self.screen
        if isinstance(screen, Workers) and (worker := screen.chosen) is not None:
            self._change(lambda seen: wanted(seen, worker))

    def _change(self, wanted: Callable[[Seen], Awaitable[actions.Change]]) -> None:
        """Change something, after a confirmation."""
        if (seen := self.current) is not None:
            self.run_worker(self._changed(seen, wanted(seen)), exit_on_error=True)

    async def _changed(self, seen: Seen, asked: Awaitable[actions.Change]) -> None:
        try:
            change = await asked
            if change.do is None:
                self._told(change.question)
            elif await self.push_screen_wait(Question(change.question)):
                self._say("message", "…")
                self._told(await change.do())
                await seen.sampler.sample(self._view.monitor.reader.timeout)
        except HANDLED as error:
            moved = getattr(error, "accepted", 0)
            self._told(message_of(error) + (f" ({moved:,} were moved before)" if moved else ""), failed=True)
        self.show()

    def _told(self, text: str, *, failed: bool = False) -> None:
        """Say what has happened, on the table and above any page."""
        self._say("message", printable(text))
        if len(self.screen_stack) > 1:
            self.notify(printable(text), severity="error" if failed else "information", markup=False)


async def run(view: View, *, read_only: bool) -> int:
    """Show queues until somebody quits, and return the exit code. Cancelled, it restores the terminal."""
    app = Top(view, read_only=read_only)
    showing = background.start(app.run_async(), "showing queues")
    try:
        await asyncio.wait((showing,))
    except asyncio.CancelledError:
        app.exit()
        await asyncio.wait((showing,), timeout=_CLOCK)
        showing.cancel()
        await asyncio.wait((showing,))
        raise
    code = showing.result()
    return app.return_code or 0 if code is None else code
