"""Shows something once, or again and again: as JSON, as lines into a pipe, as a live table on a terminal."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from apressure.cli.commands.tasks.views import message_of
from apressure.cli.options import Common
from apressure.cli.show import print_json, printable
from apressure.tasks import Task

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import Progress, TaskID

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class View(Generic[T]):
    """How something is shown.

    Attributes:
        look: Returns it as it is now.
        data: Returns it for `--json`.
        lines: Returns it for scripts.
        table: Returns it for people.
        over: Whether it changes no more.
    """

    look: Callable[[], Awaitable[T]]
    data: Callable[[T], object]
    lines: Callable[[T], Iterable[str]]
    table: Callable[[T], RenderableType]
    over: Callable[[T], bool] = lambda _: False

    async def show(self, common: Common, seconds: float | None) -> None:
        """Show it, and again after so many seconds each time until it is over; once with None."""
        if sys.stdout.isatty() and not common.json:
            await self._show_to_people(seconds)
            return
        while True:
            found = await self.look()
            if common.json:
                print_json(self.data(found))
            else:
                sys.stdout.write("".join(line + "\n" for line in self.lines(found)))
                sys.stdout.flush()
            if seconds is None or self.over(found):
                return
            await asyncio.sleep(seconds)

    async def _show_to_people(self, seconds: float | None) -> None:
        from rich.console import Console
        from rich.live import Live

        found = await self.look()
        if seconds is None:
            Console().print(self.table(found))
            return
        with Live(self.table(found), auto_refresh=False) as live:
            while not self.over(found):
                await asyncio.sleep(seconds)
                found = await self.look()
                live.update(self.table(found), refresh=True)


class Bars:
    """Bars of progress on standard error, one for each task; nothing unless `shown`."""

    def __init__(self, *, shown: bool) -> None:
        self._shown = shown
        self._progress: Progress | None = None
        self._bars: dict[str, TaskID] = {}

    def show(self, task: Task) -> None:
        """Show how far a task is."""
        if self._progress is None:
            return
        said = printable(message_of(task) or task.status or "")
        if task.id not in self._bars:
            self._bars[task.id] = self._progress.add_task(printable(task.id), total=1.0, said=said)
        done = 1.0 if task.status == "complete" else task.progress or 0.0
        self._progress.update(self._bars[task.id], completed=done, said=said)

    def keep(self, tasks: Sequence[Task]) -> None:
        """Show how far these tasks are, and no others."""
        for task in tasks:
            self.show(task)
        for gone in self._bars.keys() - {task.id for task in tasks}:
            assert self._progress is not None
            self._progress.remove_task(self._bars.pop(gone))

    def __enter__(self) -> Self:
        if self._shown:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

            self._progress = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=None),
                TaskProgressColumn(),
                TextColumn("{task.fields[said]}", markup=False),
                TimeElapsedColumn(),
                console=Console(file=sys.stderr),
                transient=True,
            )
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()
