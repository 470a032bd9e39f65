"""A model of one role of a queue, small enough to look at every state that it can be in.

The role is the consumer's, which has the leases and the messages in flight. Two clients of ours and one plain client
share it with a server. Every step of ours is a script, so here it is one transition. Other things may happen
between the steps: waiting, crashing, being served by a connection that nobody reads any more. A client that
sleeps past its lease needs no action of its own: every client may always be the one that does not move.

How a role works (docs/internals/protocol.md):

* The token is in the free list, in the claim list, in a lease or in a plain client's hands.
* To wait for the role is `BLMOVE free claim RIGHT LEFT`, outstanding on the server, which serves the blocked first
  come first served. Who was served steps with `held`: it takes the token from the claim list, else from the free list.
  Without `held` only from the free list.
* A step with the token of the lease is accepted as long as the record is there, late or not; another token is lost.
* Every step heals: a late lease gives its messages back, first in line in order, and the token to the free list. A
  claim that nobody took gets a time limit from the first step that sees it, and goes back to the free list after it.
* A fresh lease begins with giving back what some earlier one left in flight.
* Where `:bound` is gone, a renewal or an acknowledgement drops messages in flight and gives the token back. Healing
  does the same for clients that cannot renew any more.

`Design` switches single rules of these off. `search` walks all states and answers with the first one that breaks a
rule, and the way there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from tests.property.search import Result
from tests.property.search import search as search_all

CLIENTS: Final = (0, 1)
MESSAGES: Final = 2
PLAIN: Final = "plain"
DELETER: Final = "deleter"
DEAD: Final = "dead"
"""Who waits, as the server knows them: a client of ours by its number, the plain one, a connection of nobody."""

Waiter = int | str
Messages = tuple[int, ...]
Deliveries = tuple[tuple[int, int], ...]
"""Pairs of sequence and message: an acknowledgement names the first."""


@dataclass(frozen=True)
class Design:
    """Which rules hold. The defaults are the design; each flag turned is a design that fails.

    Attributes:
        wait_pops: Waiting is BRPOP of the token instead of BLMOVE to the claim list.
        acks_are_checked: An acknowledgement is refused unless it carries the lease's token.
        claims_end: A claim that nobody takes is healed after a time.
        late_lease_stays: A late lease is still there to be healed, instead of going away by a TTL.
        returns_in_front: What goes back is first in line, instead of last.
        deleted_heals: Steps heal a queue whose `:bound` is gone too, so that a foreign delete can finish.
    """

    wait_pops: bool = False
    acks_are_checked: bool = True
    claims_end: bool = True
    late_lease_stays: bool = True
    returns_in_front: bool = True
    deleted_heals: bool = True


class Client(NamedTuple):
    """A client of ours, by what it knows.

    Attributes:
        phase: `"idle"`, `"waiting"` (its BLMOVE is outstanding) or `"served"` (the reply has come).
        token: The lease's token that it remembers, 0 without.
        deliveries: What it was given under that lease and has not acknowledged.
    """

    phase: str = "idle"
    token: int = 0
    deliveries: Deliveries = ()


class Lease(NamedTuple):
    token: int
    late: bool
    received: int


class State(NamedTuple):
    """The server, the clients, and what became of each message.

    Attributes:
        life: `"there"`, `"deleting"` (`:bound` is gone) or `"gone"` (a delete took the role and cleared the keys).
        claim_until: The claim's time limit: 0 none, 1 running, 2 over.
        hands: Tokens in the hands of clients of ours: none, but for the design that pops.
        plain: What the plain client does: `"idle"`, `"waiting"`, `"holding"`.
        blocked: Who waits for the free list on the server, first come first.
        acked: Messages acknowledged, each as often as it was.
        taken: Messages that the plain client got.
        wronged: What a transition saw to be wrong, "" as long as nothing is.
    """

    queue: Messages
    life: str = "there"
    free: int = 1
    claim: int = 0
    claim_until: int = 0
    lease: Lease | None = None
    inflight: Deliveries = ()
    clients: tuple[Client, ...] = (Client(),) * len(CLIENTS)
    hands: int = 0
    plain: str = "idle"
    blocked: tuple[Waiter, ...] = ()
    acked: Messages = ()
    taken: Messages = ()
    wronged: str = ""


Transition = tuple[str, State]


# The parts of a step


def _with_client(state: State, number: int, client: Client) -> State:
    clients = list(state.clients)
    clients[number] = client
    return state._replace(clients=tuple(clients))


def _give_back(state: State, design: Design) -> State:
    messages = tuple(message for _, message in state.inflight)
    queue = messages + state.queue if design.returns_in_front else state.queue + messages
    return state._replace(queue=queue if state.life == "there" else state.queue, inflight=())


def _release(state: State) -> State:
    """LPUSH and LTRIM 0 0."""
    return state._replace(free=1, lease=None)


def _heal(state: State, design: Design) -> State:
    if state.life != "there" and not design.deleted_heals:
        return state
    if state.lease is not None and state.lease.late:
        state = _release(_give_back(state, design))
    if state.claim and not state.claim_until:
        state = state._replace(claim_until=1)
    elif state.claim and state.claim_until == 2 and design.claims_end:
        state = state._replace(claim=0, claim_until=0, free=1)
    return state


def _take(state: State, held: bool, design: Design) -> State | None:
    """The token, for a step: from the claim list if the client was served, else from the free list."""
    if held and design.wait_pops:
        return state._replace(hands=state.hands - 1)
    if held and state.claim:
        return state._replace(claim=0, claim_until=0)
    return state._replace(free=0) if state.free else None


def _return_claim(state: State) -> State:
    """What a client does with the token of a claim that it does not need any more."""
    return state._replace(claim=0, claim_until=0, free=1) if state.claim else state


def _serve(state: State, design: Design) -> State:
    """What the server does after a command: the token goes to who waits longest for it."""
    if not state.free or not state.blocked:
        return state
    first, blocked = state.blocked[0], state.blocked[1:]
    state = state._replace(free=0, blocked=blocked)
    if first == PLAIN:
        return state._replace(plain="holding")
    if first == DELETER:
        # Having both roles, it deletes the keys that it knows, in one go here: nobody else can hold this role now.
        return state._replace(life="gone", queue=(), plain="idle")
    if isinstance(first, int):
        state = _with_client(state, first, state.clients[first]._replace(phase="served"))
    if design.wait_pops:
        return state if first == DEAD else state._replace(hands=state.hands + 1)
    return state._replace(claim=state.claim + 1)


# What can happen


def _receive(state: State, number: int, design: Design) -> Transition:
    """One `receive`: under the lease if the client remembers one, else with the token of the role."""
    client = state.clients[number]
    me = f"client {number}"
    if client.token:
        if state.lease is None or state.lease.token != client.token:
            lost = _with_client(state, number, Client())
            return f"{me} receives more and learns that its lease is lost", _heal(lost, design)
        if state.life != "there":
            return f"{me} receives more, the queue is gone", _with_client(_drop(state), number, Client())
        return f"{me} receives more", _deliver(state, number, client)
    held = client.phase == "served"
    before = _with_client(state, number, Client())
    healed = _heal(before, design)
    what = f"{me} steps with held" if held else f"{me} steps"
    if healed.life != "there":
        if held and design.wait_pops:
            healed = healed._replace(hands=healed.hands - 1, free=1)
        return f"{what}, the queue is gone", _return_claim(healed) if held else healed
    taken = _take(healed, held, design)
    if taken is None:
        waiting = _with_client(healed, number, Client("waiting"))
        return f"{what}, busy, waits", waiting._replace(blocked=(*waiting.blocked, number))
    taken = _give_back(taken, design)
    if not taken.queue:
        return f"{what}, empty", _release(taken)
    remembered = {one.token for one in taken.clients}
    token = next(fresh for fresh in range(1, len(CLIENTS) + 2) if fresh not in remembered)
    leased = taken._replace(lease=Lease(token, False, 0))
    return f"{what} and receives", _deliver(leased, number, Client(token=token))


def _deliver(state: State, number: int, client: Client) -> State:
    assert state.lease is not None
    if not state.queue:
        return state._replace(lease=state.lease._replace(late=False))
    received = state.lease.received + 1
    delivery = (received, state.queue[0])
    state = state._replace(
        queue=state.queue[1:],
        inflight=(*state.inflight, delivery),
        lease=Lease(client.token, False, received),
    )
    return _with_client(state, number, client._replace(deliveries=(*client.deliveries, delivery)))


def _drop(state: State) -> State:
    """Under a lease, on a deleted queue: messages in flight are dropped, and the token is given back."""
    return _release(state._replace(inflight=()))


def _acknowledge(state: State, number: int, design: Design) -> Iterator[Transition]:
    client = state.clients[number]
    me = f"client {number}"
    ours = state.lease is not None and state.lease.token == client.token
    if not ours and design.acks_are_checked:
        yield f"{me} acknowledges, refused: the lease is lost", _heal(_with_client(state, number, Client()), design)
        return
    if state.life != "there":
        yield f"{me} acknowledges, the queue is gone", _with_client(_drop(state), number, Client())
        return
    for sequence, message in client.deliveries:
        # The record names a message by its sequence: without the token that may be a sequence of somebody else.
        hit = next((delivery for delivery in state.inflight if delivery[0] == sequence), None)
        after = state
        if hit is not None:
            after = after._replace(
                inflight=tuple(delivery for delivery in state.inflight if delivery != hit),
                acked=tuple(sorted((*state.acked, hit[1]))),
            )
            if hit[1] != message:
                after = after._replace(wronged=f"message {hit[1]} was acknowledged by one who had message {message}")
        rest = tuple(delivery for delivery in client.deliveries if delivery[0] != sequence)
        if ours:
            kept = _with_client(after, number, client._replace(deliveries=rest))
            yield f"{me} acknowledges {message} and keeps the role", kept
        if not after.inflight:
            released = _release(_with_client(after, number, Client()))
            yield f"{me} acknowledges {message} and gives the role back", released


def _of_client(state: State, number: int, design: Design) -> Iterator[Transition]:
    client = state.clients[number]
    me = f"client {number}"
    others = tuple(waiter for waiter in state.blocked if waiter != number)
    if client.phase == "waiting":
        yield f"the wait of {me} ends unserved", _with_client(state, number, Client())._replace(blocked=others)
        if DEAD not in state.blocked:
            blocked = tuple(DEAD if waiter == number else waiter for waiter in state.blocked)
            yield f"{me} crashes while it waits", _with_client(state, number, Client())._replace(blocked=blocked)
        return
    yield _receive(state, number, design)
    if client.phase == "served":
        crashed = _with_client(state, number, Client())
        yield f"{me} crashes after it was served", crashed._replace(hands=state.hands - int(design.wait_pops))
        if not design.wait_pops:
            yield f"{me} was cancelled and returns its claim", _return_claim(crashed)
    if client.token:
        yield f"{me} crashes", _with_client(state, number, Client())
        yield from _acknowledge(state, number, design)
        if state.lease is not None and state.lease.token == client.token:
            if state.life == "there":
                yield f"{me} renews", state._replace(lease=state.lease._replace(late=False))
                left = _release(_with_client(_give_back(state, design), number, Client()))
                yield f"{me} gives all back and leaves", left
            else:
                yield f"{me} renews, the queue is gone", _with_client(_drop(state), number, Client())


def _of_plain(state: State) -> Iterator[Transition]:
    if state.plain == "idle" and state.life == "there":
        yield "the plain client waits (BRPOP)", state._replace(plain="waiting", blocked=(*state.blocked, PLAIN))
        deleting = state._replace(life="deleting", plain="waiting", blocked=(*state.blocked, DELETER))
        yield "the plain client deletes: :bound first, then it waits (BRPOP)", deleting
    elif state.plain == "holding":
        yield "the plain client returns the role", state._replace(plain="idle", free=1)
        if state.queue:
            taken = tuple(sorted((*state.taken, state.queue[0])))
            yield f"the plain client pops {state.queue[0]}", state._replace(queue=state.queue[1:], taken=taken)


def _of_no_client(state: State, design: Design) -> Iterator[Transition]:
    """What happens even if all clients in the model are dead: time, the server, and a step of any other client."""
    if state.lease is not None and not state.lease.late:
        if design.late_lease_stays:
            yield "the lease runs out", state._replace(lease=state.lease._replace(late=True))
        else:
            yield "the lease runs out and its record goes", state._replace(lease=None)
    if state.claim_until == 1:
        yield "the claim runs out", state._replace(claim_until=2)
    if DEAD in state.blocked:
        blocked = tuple(waiter for waiter in state.blocked if waiter != DEAD)
        yield "the server notices a dead connection", state._replace(blocked=blocked)
    healed = _heal(state, design)
    if healed != state:
        yield "a step of somebody heals", healed


def _transitions(state: State, design: Design) -> Iterator[tuple[str, State, bool]]:
    """What can happen next: its name, the state after, and whether it needs nobody in particular to be alive."""
    for what, after in _of_no_client(state, design):
        yield what, _serve(after, design), True
    for number in CLIENTS:
        for what, after in _of_client(state, number, design):
            yield what, _serve(after, design), False
    for what, after in _of_plain(state):
        yield what, _serve(after, design), False


# What must be true


def one_token(state: State) -> str:
    held = state.plain == "holding"
    places = state.free + state.claim + (state.lease is not None) + state.hands + held
    # A plain deleter takes the token with the queue.
    expected = 0 if state.life == "gone" else 1
    return "" if places == expected else f"the token is in {places} places instead of {expected}"


def one_worker(state: State) -> str:
    ours = [
        number for number in CLIENTS if state.lease is not None and state.clients[number].token == state.lease.token
    ]
    workers = [*(f"client {number}" for number in ours), *([PLAIN] if state.plain == "holding" else [])]
    return "" if len(workers) <= 1 else f"{' and '.join(workers)} can work in the role at once"


def no_message_wronged(state: State) -> str:
    """No message is lost, acknowledged twice or by a client that never had it; the others stand in order."""
    if state.wronged:
        return state.wronged
    if state.life != "there":
        return ""
    line = (*(message for _, message in state.inflight), *state.queue)
    everywhere = sorted((*line, *state.acked, *state.taken))
    twice = {message for message in everywhere if everywhere.count(message) > 1}
    if twice:
        return f"message {min(twice)} is in two places, or was acknowledged after somebody else had it"
    if everywhere != list(range(1, len(everywhere) + 1)) or len(everywhere) != MESSAGES:
        return "a message is lost"
    return "" if list(line) == sorted(line) else f"the order is lost: {line}"


Invariant = Callable[[State], str]
"""What is broken in a state, or "". """

INVARIANTS: Final[tuple[Invariant, ...]] = (one_token, one_worker, no_message_wronged)


# The search


def search(design: Design, invariants: Sequence[Invariant] = INVARIANTS) -> Result:
    """Walk all states.

    Besides the invariants, from every state in which no plain client has the role it must get free by time and healing
    alone, even if every client is dead by then.
    """
    return search_all(
        State(queue=tuple(range(1, MESSAGES + 1))),
        lambda state: _transitions(state, design),
        lambda state: next((broken for invariant in invariants if (broken := invariant(state))), ""),
        lambda state: bool(state.free) or state.plain == "holding" or state.life == "gone",
        "the role never gets free again if all clients are dead",
    )
