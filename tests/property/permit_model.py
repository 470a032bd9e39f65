"""A model of `:not_full` beside clients that work step by step, small enough to look at every state that it can be in.

A plain producer and a plain consumer take one command at a time, as the specification says, and may die between any
two. Every step of ours is a script, so here it is one transition. A missing permit may be with one of the two:

* The producer pops it, pushes its message, and brings a permit if its push has left room.
* The consumer pops a message, looks whether there is room, and brings a permit if there is.
* A step of ours sees who has a role, and not what they hold. It brings a missing permit if it took a message, or if
  nobody plain has a role. A put of ours leaves one place to the client that gets the permit, if it is missing and a
  plain client is the consumer.
* A step of ours that changes the bound brings a permit for a queue that was full: nobody can have that one.
* Of a dead client, a person gives back the role: the doctor's step brings the permit with it. Where a producer waits
  for a permit that was lost, the doctor's advice is to push one by hand.

`Design` switches single rules of these off. `search` walks all states and answers with the way to the first bad one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from tests.property.search import Result
from tests.property.search import search as search_all

ROOM: Final = "the bound is exceeded"
STUCK: Final = "a permit is lost for good"


@dataclass(frozen=True)
class Design:
    """Which rules hold. The defaults are the design; each flag turned is a design that fails.

    Attributes:
        withholds: A step that took nothing brings no permit while a plain client has a role.
        took_brings: A step that took a message brings one all the same.
        leaves_a_place: A put leaves the place for which a consumer is about to bring the permit.
        doctor_brings: Giving back a dead client's role brings the permit that it may have had.
    """

    withholds: bool = True
    took_brings: bool = True
    leaves_a_place: bool = True
    doctor_brings: bool = True


class State(NamedTuple):
    """The server and the two plain clients.

    Attributes:
        length: How many messages wait.
        permits: What is in `:not_full`.
        producer: `"idle"`, `"role"` (it has the role), `"permit"`, `"room"` (it has put, and there was room left),
            `"end"` (only the role is to be given back), `"dead"`.
        consumer: Likewise; `"got"` is after its message.
        more: By how many the bound has grown.
    """

    length: int = 0
    permits: int = 1
    producer: str = "idle"
    consumer: str = "idle"
    more: int = 0


Transition = tuple[str, State]


def _normalised(state: State, bound: int, design: Design, took: bool) -> State:
    """What every step of ours does in the end."""
    plain = (state.producer, state.consumer) != ("idle", "idle")
    if state.length >= bound:
        return state._replace(permits=0)
    if state.permits == 0 and plain and design.withholds and not (took and design.took_brings):
        return state
    return state._replace(permits=1)


def _of_ours(state: State, bound: int, design: Design) -> Iterator[Transition]:
    if state.consumer == "idle":
        yield "a step of ours takes nothing", _normalised(state, bound, design, took=False)
        if state.length:
            got = state._replace(length=state.length - 1)
            yield "we get", _normalised(got, bound, design, took=True)
    if state.producer == "idle":
        places = bound - state.length
        if design.leaves_a_place and state.permits == 0 and state.consumer != "idle":
            places -= 1
        if places > 0:
            yield "we put", _normalised(state._replace(length=state.length + 1), bound, design, took=False)


def _of_plain_producer(state: State, bound: int) -> Iterator[Transition]:
    phase = state.producer
    if phase == "idle":
        yield "the producer takes the role", state._replace(producer="role")
    elif phase == "role" and state.permits:
        yield "the producer pops the permit", state._replace(producer="permit", permits=state.permits - 1)
    elif phase == "role" and state.length < bound and state.consumer == "idle":
        yield "somebody gives the waiting producer a permit by hand", state._replace(permits=1)
    elif phase == "permit":
        length = state.length + 1
        yield "the producer puts", state._replace(length=length, producer="room" if length < bound else "end")
    elif phase == "room":
        yield "the producer brings a permit", state._replace(permits=1, producer="end")
    elif phase == "end":
        yield "the producer gives the role back", state._replace(producer="idle")


def _of_plain_consumer(state: State, bound: int) -> Iterator[Transition]:
    phase = state.consumer
    if phase == "idle":
        yield "the consumer takes the role", state._replace(consumer="role")
    elif phase == "role" and state.length:
        yield "the consumer gets", state._replace(length=state.length - 1, consumer="got")
    elif phase == "got":
        yield "the consumer looks for room", state._replace(consumer="room" if state.length < bound else "end")
    elif phase == "room":
        yield "the consumer brings a permit", state._replace(permits=1, consumer="end")
    elif phase == "end":
        yield "the consumer gives the role back", state._replace(consumer="idle")


def _of_death(state: State, bound: int, design: Design) -> Iterator[Transition]:
    """Deaths, and what a person lets the doctor do about them: nobody who lives is in the middle of something then."""
    if state.producer not in {"idle", "dead"}:
        yield "the producer dies", state._replace(producer="dead")
    if state.consumer not in {"idle", "dead"}:
        yield "the consumer dies", state._replace(consumer="dead")
    for role, other in (("producer", state.consumer), ("consumer", state.producer)):
        if getattr(state, role) == "dead" and other in {"idle", "dead", "role"}:
            freed = state._replace(**{role: "idle"})
            room = design.doctor_brings and freed.length < bound
            yield f"the doctor gives back the {role}'s role", freed._replace(permits=1) if room else freed


def _of_growth(state: State, bound: int, design: Design) -> Iterator[Transition]:
    grown = state._replace(more=state.more + 1)
    yield "the bound grows", _normalised(grown, bound + 1, design, took=state.length >= bound)


def search(bound: int, design: Design, consumer: bool, ours: bool = True, excess: int = 0, grows: int = 0) -> Result:
    """Walk all states.

    In none may more messages wait than the bound says. From each there must be a way, without another death, back to
    an empty queue with its permit and both roles free. The producer stands for any number of them: they take turns.

    Args:
        bound: The queue's bound.
        design: The rules.
        consumer: There is a plain consumer, too. (With a bound of 2 or more, the two exceed it without us.)
        ours: There are clients of ours, too.
        excess: So many more may wait.
        grows: By how many the bound may grow, by one at a time.
    """

    def transitions(state: State) -> Iterator[tuple[str, State, bool]]:
        current = bound + state.more
        possible = [*_of_plain_producer(state, current), *_of_death(state, current, design)]
        possible += _of_plain_consumer(state, current) if consumer else ()
        possible += _of_ours(state, current, design) if ours else ()
        possible += _of_growth(state, current, design) if state.more < grows else ()
        for what, after in possible:
            yield what, after, not what.endswith("dies")

    return search_all(
        State(),
        transitions,
        lambda state: ROOM if state.length > bound + state.more + excess else "",
        lambda state: state._replace(more=0) == State(),
        STUCK,
    )
