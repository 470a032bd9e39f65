"""A search of all states of a model, breadth first, for the shortest way to a state that must not be."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

State = TypeVar("State", bound=Hashable)


@dataclass(frozen=True)
class Result:
    """What a search has found.

    Attributes:
        states: How many states it has seen.
        broken: What is broken in `state`; "" if nothing is broken in any state.
        steps: The shortest way to that state.
        state: The first state that is broken; None if there is none.
    """

    states: int
    broken: str = ""
    steps: tuple[str, ...] = ()
    state: Any = None

    def __str__(self) -> str:
        lines = (f"  {number}. {step}" for number, step in enumerate(self.steps, 1))
        return "\n".join((f"{self.broken}:", *lines, f"  -> {self.state}"))


def search(
    start: State,
    transitions: Callable[[State], Iterable[tuple[str, State, bool]]],
    broken: Callable[[State], str],
    home: Callable[[State], bool],
    stuck: str,
) -> Result:
    """Walk all states.

    Args:
        start: The first state.
        transitions: For a state, all that can happen: its name, the state after it, and whether it counts as a step of
            a way home.
        broken: Says what is broken in a state; "" for nothing.
        home: Whether a state is one to which there must be a way from every other state.
        stuck: What is broken in a state from which no such way leads.
    """
    came_from: dict[State, tuple[State, str] | None] = {start: None}
    before: dict[State, list[State]] = {}

    def found(why: str, state: State) -> Result:
        steps: list[str] = []
        here = state
        while (origin := came_from[here]) is not None:
            here, what = origin
            steps.append(what)
        return Result(len(came_from), why, tuple(reversed(steps)), state)

    todo = deque([start])
    while todo:
        state = todo.popleft()
        for what, after, leads_home in transitions(state):
            if leads_home:
                before.setdefault(after, []).append(state)
            if after not in came_from:
                came_from[after] = (state, what)
                if why := broken(after):
                    return found(why, after)
                todo.append(after)
    at_home = {state for state in came_from if home(state)}
    todo = deque(at_home)
    while todo:
        for state in before.get(todo.popleft(), ()):
            if state not in at_home:
                at_home.add(state)
                todo.append(state)
    lost = next((state for state in came_from if state not in at_home), None)
    return Result(len(came_from)) if lost is None else found(stuck, lost)
