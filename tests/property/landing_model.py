"""A model of how the holder of the consumer role waits for messages, small enough to look at every state.

Two clients of ours, a plain client and a producer share a server. A step of ours is a script, so it is one transition.
A blocked command stays on the server, first come first served, while its client stands still or after it has died. It
may also arrive late: the client stands still before it sends it. A client that stands still needs no action of its own.

The ways to wait (`Design.wait`; docs/internals/fast.md, "Waking up"):

* `"peek"` is `BLMOVE list list RIGHT RIGHT`, which takes nothing, and a step follows: two round trips. It is what we do
  where there is no lease.
* `"landing"` is `BLMOVE list landing RIGHT LEFT`. Its reply is the message, which the client hands out if its lease is
  certain. Steps under the lease find the message in the landing list. Healing, and any step while nobody has a lease,
  puts it back. This takes one round trip.
* `"behind"` is the peek with the step sent behind it, on the same connection: the server runs it when the peek ends.
  This takes one round trip, too. It is what our consumers do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from tests.property.search import Result
from tests.property.search import search as search_all

CLIENTS: Final = (0, 1)
MESSAGES: Final = 2
PLAIN: Final = "plain"
DEAD: Final = "dead"

Messages = tuple[int, ...]
Blocked = tuple[int | str, int]
"""Who waits for a message on the server, and the token of the lease under which it began."""


@dataclass(frozen=True)
class Design:
    """How to wait.

    Attributes:
        wait: See above.
        fenced: A landing list that must get nothing is a string meanwhile: a BLMOVE to it fails, and takes nothing. The
            step that ends a lease writes the string, and the step that begins to wait deletes it.
        own: Each lease has a landing list of its own, and writes its string at its end only.
        fences_last: Those strings stay forever, instead of having a time to live.
        ends_waits: A lease is ended only after the server was told to end the wait that is outstanding under it.
        leases_are_checked: A step behind a wait is refused if the lease under which it was sent has ended.
    """

    wait: Literal["peek", "landing", "behind"] = "peek"
    fenced: bool = False
    own: bool = False
    fences_last: bool = True
    ends_waits: bool = False
    leases_are_checked: bool = True


class Client(NamedTuple):
    """A client of ours, by what it knows.

    Attributes:
        phase: `"idle"`, `"holding"` (it has the role, and no message), `"about to wait"`, `"waiting"` (its command is
            outstanding), `"served"` (the reply has come), `"working"` (it has handed out a message).
        token: The lease's token that it remembers, 0 without.
        message: What it has, handed out or in a reply; 0 for nothing.
    """

    phase: str = "idle"
    token: int = 0
    message: int = 0


class State(NamedTuple):
    """The server, the clients, and what became of each message.

    Attributes:
        queue, landing, inflight: The messages in each, the oldest first.
        produced: How many messages were put.
        life: `"open"`, `"closed"`, `"gone"` (the plain client has deleted the queue).
        lease, late: The token of the lease, 0 without, and whether its time is over.
        plain: What the plain client does: `"idle"`, `"deleting"` or `"waiting"` for the role, `"holding"`, `"blocked"`.
        blocked: Who waits for a message, first come first.
        expired: The strings of leases that ended long ago are gone.
        handed: The latest message that was handed out; every one before it was, too.
        acked, taken: Messages that were acknowledged, and that the plain client got.
        wronged: What a transition saw to be wrong, "" as long as nothing is.
    """

    queue: Messages = ()
    landing: Messages = ()
    inflight: Messages = ()
    produced: int = 0
    life: str = "open"
    lease: int = 0
    late: bool = False
    clients: tuple[Client, ...] = (Client(),) * len(CLIENTS)
    plain: str = "idle"
    blocked: tuple[Blocked, ...] = ()
    expired: bool = False
    handed: int = 0
    acked: Messages = ()
    taken: Messages = ()
    wronged: str = ""

    @property
    def free(self) -> bool:
        """Whether nobody has the role."""
        return not self.lease and self.plain not in ("holding", "blocked") and self.life != "gone"


Transition = tuple[str, State]


# The parts of a step


def _with(state: State, number: int, client: Client) -> State:
    return state._replace(clients=(*state.clients[:number], client, *state.clients[number + 1 :]))


def _heal(state: State) -> State:
    if state.late:
        state = state._replace(lease=0, late=False, queue=state.inflight + state.queue, inflight=())
    if not state.lease and state.life != "gone":
        state = state._replace(queue=state.landing + state.queue, landing=())
    return state


def _hand_out(state: State, number: int, message: int) -> State:
    if message in state.acked or message in state.taken:
        state = state._replace(wronged=f"message {message} was handed out after it was done")
    client = state.clients[number]._replace(phase="working", message=message)
    return _with(_first_time(state, message), number, client)


def _first_time(state: State, message: int) -> State:
    if message > state.handed + 1:
        return state._replace(wronged=f"message {message} was handed out before message {state.handed + 1}")
    return state._replace(handed=max(state.handed, message))


def _take(state: State) -> tuple[State, int]:
    """What a step under the lease brings: first what landed, or has come with what landed; 0 for nothing."""
    flying = state.inflight + state.landing
    state = state._replace(landing=(), inflight=flying, late=False)
    if not flying and state.queue:
        state = state._replace(inflight=state.queue[:1], queue=state.queue[1:])
    return state, state.inflight[0] if state.inflight else 0


def _receive(state: State, number: int) -> Transition:
    client = state.clients[number]
    me = f"client {number}"
    if not client.token:
        state = _heal(state)
        if not state.free:
            return f"{me} steps, busy", state
        known = {one.token for one in state.clients} | {token for _, token in state.blocked}
        token = next(fresh for fresh in range(1, 9) if fresh not in known)
        return f"{me} takes the role", _with(state._replace(lease=token), number, Client("holding", token))
    if state.lease != client.token:
        return f"{me} steps, its lease is lost", _heal(_with(state, number, Client()))
    state, message = _take(state)
    if message:
        return f"{me} receives {message}", _hand_out(state, number, message)
    if state.life == "closed":
        return f"{me} receives, closed", _drained(_with(state._replace(lease=0), number, Client()))
    return f"{me} receives, empty", _with(state, number, Client("about to wait", client.token))


def _drained(state: State) -> State:
    if left := state.queue + state.landing + state.inflight:
        return state._replace(wronged=f"the queue counts as drained, and message {left[0]} is left")
    return state


def _serve(state: State, design: Design) -> State:
    """What the server does after a command."""
    if state.free and state.plain == "waiting":
        state = state._replace(plain="holding")
    elif state.free and state.plain == "deleting":
        # It deletes the keys that it knows.
        state = state._replace(plain="idle", life="gone", queue=())
    behind: list[Blocked] = []
    while state.queue and state.blocked:
        (who, token), blocked = state.blocked[0], state.blocked[1:]
        state = state._replace(blocked=blocked)
        if who == PLAIN:
            message, queue = state.queue[0], state.queue[1:]
            taken = tuple(sorted((*state.taken, message)))
            state = _first_time(state._replace(queue=queue, taken=taken, plain="holding"), message)
            continue
        message = 0
        if design.wait == "landing" and _is_open(state, token, design):
            message = state.queue[0]
            state = state._replace(queue=state.queue[1:], landing=(*state.landing, message))
        elif design.wait == "behind":
            behind.append((who, token))
        if isinstance(who, int):
            state = _with(state, who, state.clients[who]._replace(phase="served", message=message))
    for who, token in behind:
        message = 0
        if token == state.lease or not design.leases_are_checked:
            state, message = _take(state)
        if isinstance(who, int):
            state = _with(state, who, state.clients[who]._replace(message=message))
    return state


def _is_open(state: State, token: int, design: Design) -> bool:
    if not design.fenced or (design.own and state.expired and token != state.lease):
        return True
    return token == state.lease if design.own else state.lease != 0


# What can happen


def _of_client(state: State, number: int) -> Iterator[Transition]:
    client = state.clients[number]
    me = f"client {number}"
    outstanding = (number, client.token)
    others = tuple(one for one in state.blocked if one != outstanding)
    if client.phase == "about to wait":
        waiting = _with(state, number, client._replace(phase="waiting"))
        yield f"the wait of {me} arrives", waiting._replace(blocked=(*state.blocked, outstanding))
        yield f"{me} crashes", _with(state, number, Client())
    elif client.phase == "waiting":
        yield f"the wait of {me} ends", _with(state, number, Client("holding", client.token))._replace(blocked=others)
        if all(who != DEAD for who, _ in state.blocked):
            blocked = tuple((DEAD, client.token) if one == outstanding else one for one in state.blocked)
            yield f"{me} crashes while it waits", _with(state, number, Client())._replace(blocked=blocked)
    elif client.phase == "working":
        yield f"{me} crashes with {client.message}", _with(state, number, Client())
        if state.lease != client.token:
            yield f"{me} acknowledges, refused", _heal(_with(state, number, Client()))
        else:
            flying = tuple(one for one in state.inflight + state.landing if one != client.message)
            done = state._replace(landing=(), inflight=flying, acked=tuple(sorted((*state.acked, client.message))))
            yield f"{me} acknowledges {client.message}", _with(done, number, Client("holding", client.token))
    elif client.phase == "served" and client.message and state.lease == client.token and not state.late:
        yield f"{me} hands out {client.message}, its lease is certain", _hand_out(state, number, client.message)
        yield f"{me} crashes with a reply", _with(state, number, Client())
    else:
        yield _receive(state, number)
        if client.token:
            yield f"{me} crashes", _with(state, number, Client())
        if client.phase == "holding" and state.lease == client.token and not state.inflight:
            left = state._replace(lease=0, late=False, queue=state.landing + state.queue, landing=())
            yield f"{me} leaves", _with(left, number, Client())


def _of_plain(state: State) -> Iterator[Transition]:
    if state.plain == "idle" and state.life != "gone":
        yield "the plain client waits for the role (BRPOP)", state._replace(plain="waiting")
        yield "the plain client deletes, and waits for the role (BRPOP)", state._replace(plain="deleting")
    elif state.plain == "holding":
        yield "the plain client returns the role", state._replace(plain="idle")
        if state.queue or state.life == "open":
            waits = state._replace(plain="blocked", blocked=(*state.blocked, (PLAIN, 0)))
            yield "the plain client gets (BRPOP)", waits
        else:
            yield "the plain client finds it closed", _drained(state)._replace(plain="idle")


def _of_nobody(state: State, design: Design) -> Iterator[Transition]:
    """What happens even if all consumers are dead: time, the server, a step of any other client of ours."""
    if state.lease and not state.late:
        yield "the lease runs out", state._replace(late=True)
    if any(who == DEAD for who, _ in state.blocked):
        blocked = tuple(one for one in state.blocked if one[0] != DEAD)
        yield "the server notices a dead connection", state._replace(blocked=blocked)
    ended = any(client.token not in (0, state.lease) for client in state.clients)
    if ended and design.own and not design.fences_last and not state.expired:
        yield "the strings of ended leases expire", state._replace(expired=True)
    if (healed := _heal(state)) != state:
        yield "a step of somebody heals", healed


def _of_producer(state: State) -> Iterator[Transition]:
    if state.life == "open" and state.plain != "deleting":
        if state.produced < MESSAGES:
            message = state.produced + 1
            yield f"message {message} is put", state._replace(produced=message, queue=(*state.queue, message))
        yield "the queue is closed", state._replace(life="closed")


def _transitions(state: State, design: Design) -> Iterator[tuple[str, State, bool]]:
    for what, after in _of_nobody(state, design):
        yield what, _serve(_end_waits(state, after, design), design), True
    for number in CLIENTS:
        for what, after in _of_client(state, number):
            yield what, _serve(_end_waits(state, after, design), design), False
    for what, after in (*_of_plain(state), *_of_producer(state)):
        yield what, _serve(after, design), False


def _end_waits(before: State, after: State, design: Design) -> State:
    """Where a step has ended a lease: what the client that sent it did before, if it ends waits."""
    if not design.ends_waits or not before.lease or after.lease == before.lease:
        return after
    for who, token in after.blocked:
        if token == before.lease and isinstance(who, int):
            after = _with(after, who, Client("holding", token))
    return after._replace(blocked=tuple(one for one in after.blocked if one[1] != before.lease))


# What must be true


def reachable(state: State) -> str:
    """A plain client that has the role finds what was put; and one that deletes leaves no message behind."""
    if state.landing and (state.plain in ("holding", "blocked") or state.life == "gone"):
        return f"message {state.landing[0]} lies where the plain client does not look"
    return ""


def in_order(state: State) -> str:
    """Messages are handed out in order, once unless a lease was lost, and all before the queue counts as drained."""
    return state.wronged


def none_lost(state: State) -> str:
    """Each message is in one place; statistics count what was acknowledged or taken, so each counts once."""
    if state.life == "gone":
        return ""
    places = sorted((*state.queue, *state.landing, *state.inflight, *state.acked, *state.taken))
    if len(set(places)) < len(places):
        return f"a message is in two places: {places}"
    return "" if len(places) == state.produced else f"a message is lost: {places} are there"


Invariant = Callable[[State], str]
"""What is broken in a state, or "". """

INVARIANTS: Final[tuple[Invariant, ...]] = (none_lost, reachable, in_order)


def search(design: Design, invariants: Sequence[Invariant] = INVARIANTS) -> Result:
    """Walk all states.

    From every state in which no plain client has the role, it must get free by time and healing alone, with every
    message in the queue, even if every client is dead by then.
    """
    return search_all(
        State(),
        lambda state: _transitions(state, design),
        lambda state: next((broken for invariant in invariants if (broken := invariant(state))), ""),
        lambda state: not (state.lease or state.inflight or state.landing),
        "the role never gets free again if all clients are dead",
    )
