"""The table of queues. It has as many lines as there are queues, and makes only those that are on the screen."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from apressure.cli.show import printable
from apressure.cli.top.cells import Column, fitting
from apressure.cli.top.view import View
from apressure.monitor.monitor import Seen
from apressure.queue_addresses import QueueAddress

_HEAD = Style(bold=True, underline=True)
_CURSOR = Style(reverse=True)
_DRAWN = ("Fill", "Trend")
"""Columns that would say something else with their colors reversed."""
_MOST = 60
"""Cells of a name that make its column wider."""


class QueueTable(ScrollView, can_focus=True):
    """The table of queues. The cursor stays on its queue when the order changes.

    Args:
        view: What it shows.

    Attributes:
        chosen: The queue under the cursor; None for the first one.
        empty: What it says without queues.
    """

    DEFAULT_CSS = "QueueTable { overflow-x: hidden; }"
    BINDINGS = [  # noqa: RUF012 (Textual reads it)
        Binding("up", "move(-1)", "Up", show=False),
        Binding("down", "move(1)", "Down", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("pagedown", "page(1)", "Page down", show=False),
        Binding("home", "end(0)", "First", show=False),
        Binding("end", "end(1)", "Last", show=False),
    ]

    def __init__(self, view: View) -> None:
        super().__init__()
        self.chosen: QueueAddress | None = None
        self.empty = "looking for queues…"
        self._view = view
        self._columns: list[tuple[Column, int]] = []
        self._lines: list[Strip] = []
        self._index = 0

    def update(self) -> None:
        """Show what the view has now."""
        rows = self._view.rows
        index = min(self._index, max(0, len(rows) - 1))
        if self.chosen is not None and not (rows and rows[index].address == self.chosen):
            index = next((at for at, one in enumerate(rows) if one.address == self.chosen), index)
        moved, self._index = index != self._index, index
        self.virtual_size = Size(self.size.width, len(rows) + 1)
        if moved:
            self._show_cursor()
        self._draw()

    def first(self) -> None:
        """Put the cursor on the first queue, whichever that will be."""
        self.chosen, self._index = None, 0
        self.scroll_to(y=0, animate=False)

    @property
    def current(self) -> Seen | None:
        """The queue under the cursor, as it was seen last."""
        rows = self._view.rows
        return rows[self._index] if self._index < len(rows) else None

    @property
    def visible_rows(self) -> Sequence[Seen]:
        """The queues on the screen."""
        first = int(self.scroll_offset.y)
        return self._view.rows[first : first + max(0, self.size.height - 1)]

    def action_move(self, lines: int) -> None:
        """Move the cursor."""
        rows = self._view.rows
        if rows:
            self._index = max(0, min(len(rows) - 1, self._index + lines))
            self.chosen = rows[self._index].address
            self._show_cursor()
            self._draw()

    def action_page(self, pages: int) -> None:
        """Move the cursor by pages."""
        self.action_move(pages * max(1, self.size.height - 2))

    def action_end(self, last: int) -> None:
        """Move the cursor to the first queue, or to the last one."""
        self.action_move(len(self._view.rows) * (1 if last else -1))

    def on_click(self, event: events.Click) -> None:
        """Choose the queue of this line."""
        at = int(self.scroll_offset.y) + event.y - 1
        if 0 <= at < len(self._view.rows) and event.y:
            self.action_move(at - self._index)

    def on_resize(self) -> None:
        """Choose the columns that fit now."""
        self.update()
        self._show_cursor()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self._draw()

    def render_line(self, y: int) -> Strip:
        """Return a line of the screen."""
        return self._lines[y] if y < len(self._lines) else Strip.blank(self.size.width, Style.null())

    def _draw(self) -> None:
        """Make the lines of the screen. The terminal gets those that have changed."""
        names = (cell_len(printable(str(one.address))) for one in self.visible_rows)
        longest = min(_MOST, max(names, default=0))
        self._columns = fitting(self.size.width, len(self._view.servers), longest)
        before, self._lines = self._lines, [self._line(y) for y in range(self.size.height)]
        for y, line in enumerate(self._lines):
            if y >= len(before) or line != before[y]:
                self.refresh(Region(0, y, self.size.width, 1))

    def _line(self, y: int) -> Strip:
        if y == 0:
            return self._strip([(column.title, "") for column, _ in self._columns], _HEAD)
        index = int(self.scroll_offset.y) + y - 1
        if index >= len(self._view.rows):
            text = self.empty if index == 0 else ""
            return Strip([Segment(text, Style.null())]).adjust_cell_length(self.size.width, Style.null())
        seen = self._view.rows[index]
        latest = seen._replace(sample=seen.sampler.latest or seen.sample)  # it may be newer than the order
        lengths = self._view.trend(seen.address)
        cells = [column.cell(latest, lengths) for column, _ in self._columns]
        return self._strip(cells, _CURSOR if index == self._index else Style.null())

    def _strip(self, cells: Sequence[tuple[str, str]], style: Style) -> Strip:
        segments = []
        for (text, color), (column, width) in zip(cells, self._columns, strict=True):
            shown = shortened(text, width, end=column.title == "Queue")
            shown = " " * (width - cell_len(shown)) + shown if column.right else set_cell_size(shown, width)
            own = Style.null() if column.title in _DRAWN and style is _CURSOR else style
            segments += [Segment(shown, Style.parse(color) + own), Segment("  ", style)]
        return Strip(segments).adjust_cell_length(self.size.width, style)

    def _show_cursor(self) -> None:
        """Scroll so that the cursor is on the screen."""
        first, height = int(self.scroll_offset.y), max(1, self.size.height - 1)
        if self._index < first:
            self.scroll_to(y=self._index, animate=False)
        elif self._index >= first + height:
            self.scroll_to(y=self._index - height + 1, animate=False)


def shortened(text: str, width: int, *, end: bool) -> str:
    """Return a text of at most so many cells. `end`: its end is kept, too: that of a path says most."""
    if cell_len(text) <= width:
        return text
    kept = width // 2 if end else 0
    tail = text[len(text) - kept :]
    while cell_len(tail) > kept:
        tail = tail[1:]
    return set_cell_size(text, max(0, width - 1 - cell_len(tail))) + "…" * (width > 0) + tail
