"""The screens beside the table: a page about one queue, its workers, and a question."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from rich.console import RenderableType
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widgets import Footer, OptionList, Static
from textual.widgets.option_list import Option

from apressure.cli.exits import HANDLED, message_of
from apressure.cli.show import printable
from apressure.cli.top.details import worker_text
from apressure.core.workers import WorkerStatistics
from apressure.monitor.monitor import Seen
from apressure.queue_addresses import QueueAddress

_BACK: Final = Binding("escape", "app.pop_screen", "Back")


class QueuePage(Screen[None]):
    """A page about one queue, which is kept up to date.

    Args:
        address: The queue; None for a page about none.
        title: What the page is.
        content: Makes it.
        seconds: It is made again after so many seconds.
    """

    BINDINGS = [_BACK]  # noqa: RUF012 (Textual reads it)

    def __init__(
        self, address: QueueAddress | None, title: str, content: Callable[[], Awaitable[RenderableType]],
        seconds: float = 2.0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.address = address
        self._head = Text(printable(title), "bold reverse")
        self._content = content
        self._seconds = seconds

    def compose(self) -> ComposeResult:
        yield Static(self._head)
        with VerticalScroll():
            yield Static("…", id="content")
        yield Footer()

    def on_mount(self) -> None:
        """Show it, and keep it up to date."""
        self.query_one(VerticalScroll).focus()
        self.update()
        self.set_interval(self._seconds, self.update)

    def update(self) -> None:
        """Make it again. An attempt that is under way ends."""
        self.run_worker(self._update(), exclusive=True, exit_on_error=True)

    async def _update(self) -> None:
        try:
            content = await self._content()
        except HANDLED as error:
            content = Text(message_of(error), "red")
        self.query_one("#content", Static).update(content)


class Workers(Screen[None]):
    """The workers of a queue.

    Args:
        address: The queue.
        now: Returns what is known of the queue now; None if it is gone.
    """

    BINDINGS = [_BACK, Binding("x", "app.drain", "Drain"), Binding("k", "app.stack", "Stack")]  # noqa: RUF012 (Textual reads it)

    def __init__(self, address: QueueAddress, now: Callable[[], Seen | None]) -> None:
        super().__init__()
        self.address = address
        self._now = now
        self._shown: tuple[WorkerStatistics, ...] | None = None

    def compose(self) -> ComposeResult:
        yield Static(Text(printable(f"Workers of {self.address}"), "bold reverse"))
        yield OptionList()
        yield Footer()

    def on_mount(self) -> None:
        """Show them, and keep them up to date."""
        self.update()
        self.set_interval(1.0, self.update)

    def update(self) -> None:
        """Show who is there now; the cursor stays on its worker."""
        seen = self._now()
        workers = tuple(getattr(seen.sample.statistics, "workers", ())) if seen is not None else ()
        if workers == self._shown:
            return
        chosen = self.chosen
        options = self.query_one(OptionList)
        self._shown = workers
        options.clear_options()
        options.add_options([Option(Text(worker_text(worker))) for worker in workers])
        if not workers:
            options.add_option(Option(Text("no workers are registered"), disabled=True))
        else:
            ids = [worker.id for worker in workers]
            options.highlighted = ids.index(chosen.id) if chosen is not None and chosen.id in ids else 0

    @property
    def chosen(self) -> WorkerStatistics | None:
        """The worker under the cursor."""
        at = self.query_one(OptionList).highlighted
        return self._shown[at] if self._shown and at is not None and at < len(self._shown) else None


class Question(ModalScreen[bool]):
    """Asks whether to do something. Only `y` does it.

    Args:
        text: The question.
    """

    DEFAULT_CSS = """
    Question { align: center middle; }
    Question Vertical { width: 70; max-width: 90%; height: auto; border: round yellow; padding: 1 2; }
    """
    BINDINGS = [  # noqa: RUF012 (Textual reads it)
        Binding("y", "dismiss(True)", "Yes"), Binding("n,escape,q", "dismiss(False)", "No"),
        Binding("ctrl+c", "app.interrupt", show=False, priority=True),
    ]  # fmt: skip

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = printable(text)

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(Text.assemble(self._text, "\n\n", ("y", "bold"), " yes    ", ("n", "bold"), " no"))
