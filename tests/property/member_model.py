"""A model of the clients that share the consumer role, small enough to look at every state that it can be in.

Two members share a server with a client of the version before, which knows only exclusive consumers, and with a plain
client. Every step of ours is a script, so here it is one transition. Replies can be lost: then the client repeats its
step, and the original may arrive before that, after it, or never. A client that stands still needs no action of its
own: every client may always be the one that does not move.

How members work (docs/internals/protocol.md):

* The lease of the role has a record of each member: its deadline, its latest receive, and what it has in flight. The
  lease's own deadline is the latest one of all, which is what clients of the version before look at.
* A step of a member is accepted as long as its record is there, late or not. Only what the record has can be settled.
* Steps of members remove late members: what those had goes back, marked. With the last member the role goes back. Any
  other step does that when all are late.
* A receive says what the client has in hand: what else its record has goes back. A repeated receive brings the same
  again, and one that arrives after a later one is refused.
* A client hands out nothing from its buffer once its lease may have run out, unless the server renews it.
* What goes back without having been handed out is not marked.
* Where `:bound` is gone, the step of any member ends the lease of all, and drops what is in flight.

`Design` switches single rules of these off, and `Cast` says who takes part. `search` walks all states and answers with
the first one that breaks a rule, and the way there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from tests.property.search import Result
from tests.property.search import search as search_all

MEMBERS: Final = (0, 1)
OLD: Final = 9
"""The token of the client of the version before."""
PLAIN: Final = "plain"
DELETER: Final = "deleter"

Item = tuple[int, bool]
"""A message, and whether it is marked as delivered before."""
Delivery = tuple[int, int, bool]
"""A number, a message, and the mark."""
Deliveries = tuple[Delivery, ...]


@dataclass(frozen=True)
class Design:
    """Which rules hold. The defaults are the design; each flag turned is a design that fails.

    Attributes:
        share_comes_back: What a late member had goes back when its record is removed.
        late_steps_are_refused: A settlement is refused if the client's record is gone.
        returns_are_marked: What goes back was delivered, for all that anybody knows.
        buffer_is_assured: A client asks the server before it hands out what it received long ago.
        receives_are_ordered: A receive that arrives after its repeat, or after a later one, is refused.
        latest_deadline: The lease's deadline is the latest one of the members, not the earliest.
        last_returns_role: With the last member the role goes back.
    """

    share_comes_back: bool = True
    late_steps_are_refused: bool = True
    returns_are_marked: bool = True
    buffer_is_assured: bool = True
    receives_are_ordered: bool = True
    latest_deadline: bool = True
    last_returns_role: bool = True


@dataclass(frozen=True)
class Cast:
    """Who takes part, and how much can happen: the product of all is large.

    Attributes:
        clients: How many want to be members.
        members: How many members the server has at most, also dead ones.
        messages: How many there are.
        numbers: How many deliveries one lease makes at most.
        old: There is a client of the version before.
        plain: There is a plain client, which also deletes.
        losses: Replies can be lost.
        closes: The queue may be closed.
    """

    clients: int = len(MEMBERS)
    members: int = 2
    messages: int = 1
    numbers: int = 2
    old: bool = False
    plain: bool = False
    losses: bool = False
    closes: bool = False


class Step(NamedTuple):
    """A step that was sent and not answered.

    Attributes:
        who: The member.
        kind: `"receive"`, `"settle"` or `"leave"`.
        token: The member's.
        sequence: Of a receive.
        hand: What a receive says is in hand: numbers.
        acks: The numbers that it acknowledges.
        backs: The numbers that it gives back.
        unseen: From this number on, nothing was handed out; 0 for none.
    """

    who: int
    kind: str
    token: int
    sequence: int = 0
    hand: tuple[int, ...] = ()
    acks: tuple[int, ...] = ()
    backs: tuple[int, ...] = ()
    unseen: int = 0


class Client(NamedTuple):
    """A member, by what it knows.

    Attributes:
        phase: `"idle"`, `"waiting"` (its BLMOVE is outstanding), `"served"`, `"member"`.
        token: The token that it remembers, 0 without.
        sequence: Of its latest receive; 0 as long as no earlier one is on its way.
        buffer: What it received and has not handed out.
        hand: What it has handed out and not settled.
        pending: A step without an answer, which it repeats; None without.
    """

    phase: str = "idle"
    token: int = 0
    sequence: int = 0
    buffer: Deliveries = ()
    hand: Deliveries = ()
    pending: Step | None = None


class Record(NamedTuple):
    """A member, as the server knows it. The client of the version before has such a record, too."""

    token: int
    late: bool
    sequence: int
    last: Deliveries
    owned: Deliveries


class State(NamedTuple):
    """The server, the clients, and what became of each message.

    Attributes:
        queue: What waits, the next one first.
        life: `"there"`, `"deleting"` (`:bound` is gone), `"gone"`.
        closed: The queue is closed.
        free, claim: How many tokens are in the lists of the role.
        claim_until: The claim's time limit: 0 none, 1 running, 2 over.
        records: The members in the lease, or the one exclusive client; empty without a lease.
        leased: There is a lease.
        number: The next delivery's.
        clients: The members.
        old: What the client of the version before has in hand; None while it has no lease that it knows of.
        stray: The original of a step that was repeated, or will be.
        plain: What the plain client does: `"idle"`, `"waiting"`, `"holding"`.
        blocked: Who waits for the free list on the server, first come first.
        handed: Messages that were handed out at least once.
        acked, taken: Messages that were acknowledged, and that the plain client got; each as often as it was.
        wronged: What a transition saw to be wrong, "" as long as nothing is.
    """

    queue: tuple[Item, ...]
    life: str = "there"
    closed: bool = False
    free: int = 1
    claim: int = 0
    claim_until: int = 0
    records: tuple[Record, ...] = ()
    leased: bool = False
    number: int = 1
    clients: tuple[Client, ...] = (Client(),) * len(MEMBERS)
    old: Deliveries | None = None
    stray: Step | None = None
    plain: str = "idle"
    blocked: tuple[int | str, ...] = ()
    handed: tuple[int, ...] = ()
    acked: tuple[int, ...] = ()
    taken: tuple[int, ...] = ()
    wronged: str = ""


# The parts of a step


def _with(state: State, who: int, client: Client) -> State:
    return state._replace(clients=(*state.clients[:who], client, *state.clients[who + 1 :]))


def _record(state: State, token: int) -> Record | None:
    return next((record for record in state.records if record.token == token), None)


def _write(state: State, record: Record) -> State:
    others = [one for one in state.records if one.token != record.token]
    return state._replace(records=tuple(sorted((*others, record))), leased=True)


def _back(state: State, deliveries: Deliveries, design: Design, unseen: int = 0) -> State:
    """Return deliveries, first in line, in order; marked, unless their numbers say that nobody has had them."""
    items = tuple(
        (message, marked or (design.returns_are_marked and not (unseen and number >= unseen)))
        for number, message, marked in sorted(deliveries)
    )
    return state._replace(queue=items + state.queue) if state.life == "there" else state


def _release(state: State) -> State:
    return state._replace(free=1, records=(), leased=False)


def _remove(state: State, gone: tuple[Record, ...], design: Design) -> State:
    """Remove members, and return what they have; without members the lease ends."""
    owned = tuple(delivery for record in gone for delivery in record.owned)
    state = state._replace(records=tuple(record for record in state.records if record not in gone))
    if design.share_comes_back or not state.records:
        state = _back(state, owned, design)
    return _release(state) if not state.records and design.last_returns_role else state


def _heal_members(state: State, design: Design) -> State:
    """What a step of a member does besides: it removes those that are late."""
    late = tuple(record for record in state.records if record.late)
    return _remove(state, late, design) if late and state.life == "there" else state


def _heal(state: State, design: Design) -> State:
    """What every step does, also one of a client that knows of no members: it heals a lease whose deadline is over."""
    over = [record.late for record in state.records]
    if state.leased and over and (all(over) if design.latest_deadline else any(over)):
        living = any(not record.late for record in state.records)
        state = _release(_back(state, tuple(one for record in state.records for one in record.owned), design))
        if living:
            state = state._replace(wronged="a member that is not late lost its share")
    if state.claim and not state.claim_until:
        state = state._replace(claim_until=1)
    elif state.claim and state.claim_until == 2:
        state = state._replace(claim=0, claim_until=0, free=1)
    return state


def _serve(state: State) -> State:
    """What the server does after a command: the token goes to who waits longest for it."""
    if not state.free or not state.blocked:
        return state
    first, blocked = state.blocked[0], state.blocked[1:]
    state = state._replace(free=0, blocked=blocked)
    if first == PLAIN:
        return state._replace(plain="holding")
    if first == DELETER:
        return state._replace(life="gone", queue=(), plain="idle")
    assert isinstance(first, int)
    served = state.clients[first]
    if served.phase == "waiting":
        state = _with(state, first, served._replace(phase="served"))
    return state._replace(claim=state.claim + 1)


# The steps of members. Each returns the state of the server after it, and the reply.

Reply = tuple[str, Deliveries]


def _receive(state: State, step: Step, repeated: bool, cast: Cast, design: Design) -> tuple[State, Reply]:
    me = _record(state, step.token)
    if state.life != "there":
        return (_release(state) if me else _heal(state, design)), ("missing", ())
    if me is None:
        return state, ("lost", ())
    late = step.sequence < me.sequence or (step.sequence == me.sequence and not repeated)
    if late and design.receives_are_ordered:
        return state, ("lost", ())
    me = me._replace(late=False)
    state = _write(state, me)
    if step.sequence == me.sequence and me.last:
        return state, ("ok", me.last)
    state = _heal_members(state, design)
    state = _acknowledge(state, me, step)
    acks = {number for number in step.acks if any(one[0] == number for one in me.owned)}
    unknown = tuple(one for one in me.owned if one[0] not in acks and one[0] not in step.hand)
    owned = tuple(one for one in me.owned if one[0] in step.hand and one[0] not in acks)
    state = _back(state, unknown, design, step.unseen)
    share = -(-len(state.queue) // len(state.records))
    some = state.queue[: min(share, cast.numbers + 1 - state.number)]
    got = tuple((state.number + place, *item) for place, item in enumerate(some))
    state = state._replace(queue=state.queue[len(got) :], number=state.number + len(got))
    me = me._replace(sequence=step.sequence, last=got, owned=tuple(sorted(owned + got)))
    others = sum(len(record.owned) for record in state.records if record.token != me.token)
    end = state.closed and not (state.queue or got or owned or others)
    return _write(state, me), ("closed" if end else "ok", got)


def _acknowledge(state: State, me: Record, step: Step) -> State:
    settled = tuple(one for one in me.owned if one[0] in step.acks)
    return state._replace(acked=tuple(sorted((*state.acked, *(message for _, message, _ in settled)))))


def _settle(state: State, step: Step, design: Design) -> tuple[State, Reply]:
    me = _record(state, step.token)
    if state.life != "there":
        return (_release(state) if me else _heal(state, design)), ("missing", ())
    if me is None:
        if design.late_steps_are_refused:
            return state, ("lost", ())
        # It settles numbers that are another member's by now, or nobody's.
        state = state._replace(acked=tuple(sorted((*state.acked, *_messages(state, step)))))
        return state, ("ok", ())
    state = _acknowledge(state, me, step)
    backs = tuple(one for one in me.owned if one[0] in step.backs or step.kind == "leave")
    backs = tuple(one for one in backs if one[0] not in step.acks)
    state = _back(state, backs, design, step.unseen)
    owned = tuple(one for one in me.owned if one[0] not in step.acks and one not in backs)
    if step.kind == "leave":
        state = state._replace(records=tuple(record for record in state.records if record.token != me.token))
        state = _heal_members(state, design) if state.records else state
        return (_release(state) if not state.records and design.last_returns_role else state), ("ok", ())
    return _heal_members(_write(state, me._replace(late=False, owned=owned)), design), ("ok", ())


def _messages(state: State, step: Step) -> tuple[int, ...]:
    hand = state.clients[step.who].hand
    return tuple(message for number, message, _ in hand if number in step.acks)


def _execute(state: State, step: Step, repeated: bool, cast: Cast, design: Design) -> tuple[State, Reply]:
    if step.kind == "receive":
        return _receive(state, step, repeated, cast, design)
    return _settle(state, step, design)


# What can happen


def _sent(state: State, step: Step, what: str, cast: Cast, design: Design) -> Iterator[tuple[str, State]]:
    """A member sends a step, and the answer comes, or not."""
    after, reply = _execute(state, step, False, cast, design)
    yield what, _answered(after, step, reply)
    if cast.losses and state.stray is None:
        client = state.clients[step.who]
        yield (
            f"{what}; the connection is lost",
            _with(state, step.who, client._replace(pending=step))._replace(stray=step),
        )


def _answered(state: State, step: Step, reply: Reply) -> State:
    """The client learns what the server has said."""
    client = state.clients[step.who]._replace(pending=None)
    said, got = reply
    if said in {"lost", "missing", "closed"} or step.kind == "leave":
        # (At the end it leaves, which is one step more: it has nothing by then.)
        left = state
        if said == "closed":
            records = tuple(record for record in state.records if record.token != step.token)
            left = state._replace(records=records) if records else _release(state)
        return _with(left, step.who, Client())
    settled = {*step.acks, *step.backs}
    hand = tuple(one for one in client.hand if one[0] not in settled)
    fresh = tuple(one for one in got if one not in client.buffer and one not in hand)
    state = _with(state, step.who, client._replace(hand=hand, buffer=client.buffer + fresh))
    record = _record(state, client.token)
    late = state.stray is not None and state.stray.token == client.token
    if record is not None and (step.kind == "receive" or not late):
        # Nobody repeats this receive. Its number only matters to an earlier one that is on its way.
        state = _write(state, record._replace(sequence=2 * late, last=()))
        state = _with(state, step.who, state.clients[step.who]._replace(sequence=2 * late))
    return state


def _of_member(state: State, who: int, cast: Cast, design: Design) -> Iterator[tuple[str, State]]:
    client, me = state.clients[who], f"member {who}"
    if client.phase != "member":
        yield from _of_candidate(state, who, client, cast, design)
        return
    yield f"{me} crashes", _with(state, who, Client())
    if client.pending is not None:
        after, reply = _execute(state, client.pending, True, cast, design)
        yield f"{me} repeats its step", _answered(after, client.pending, reply)
        return
    numbers = tuple(one[0] for one in (*client.buffer, *client.hand))
    record = _record(state, client.token)
    if client.buffer and (not design.buffer_is_assured or (record is not None and not record.late)):
        first = client.buffer[0]
        handed = _with(state, who, client._replace(buffer=client.buffer[1:], hand=(*client.hand, first)))
        if first[1] in state.handed and not first[2]:
            handed = handed._replace(wronged=f"message {first[1]} was handed out again, and was not marked")
        yield f"{me} hands out {first[1]}", handed._replace(handed=tuple(sorted({*state.handed, first[1]})))
    if state.number <= cast.numbers or not client.buffer:
        behind = max(numbers, default=0) + 1
        for acks in {(), tuple(one[0] for one in client.hand)}:
            hand = tuple(number for number in numbers if number not in acks)
            step = Step(who, "receive", client.token, client.sequence + 1, hand, acks, unseen=behind)
            yield from _sent(state, step, f"{me} acknowledges {acks} and receives", cast, design)
    for number, message, _ in client.hand:
        step = Step(who, "settle", client.token, acks=(number,))
        yield from _sent(state, step, f"{me} acknowledges {message}", cast, design)
        step = Step(who, "settle", client.token, backs=(number,))
        yield from _sent(state, step, f"{me} gives {message} back", cast, design)
    yield from _sent(state, Step(who, "settle", client.token), f"{me} renews", cast, design)
    unseen = min((one[0] for one in client.buffer), default=0)
    yield from _sent(state, Step(who, "leave", client.token, unseen=unseen), f"{me} leaves", cast, design)


def _of_candidate(state: State, who: int, client: Client, cast: Cast, design: Design) -> Iterator[tuple[str, State]]:
    """A client that wants to be a member: it waits for the role in the claim list if another client has it."""
    me, others = f"member {who}", tuple(waiter for waiter in state.blocked if waiter != who)
    if client.phase == "waiting":
        yield f"the wait of {me} ends", _with(state, who, Client())._replace(blocked=others)
        return
    held = client.phase == "served"
    healed = _with(_heal(state, design), who, Client())
    if held:
        yield f"{me} crashes after it was served", _with(state, who, Client())
    if healed.life != "there":
        if held:
            yield f"{me} joins, the queue is gone", _unclaim(healed)
        return
    shared = healed.leased and _record(healed, OLD) is None
    if shared:
        healed = _heal_members(healed, design)
        shared = healed.leased
    if not shared:
        if held and healed.claim:
            healed = healed._replace(claim=0, claim_until=0)
        elif healed.free:
            healed = healed._replace(free=0)
        else:
            waiting = _with(healed, who, Client("waiting"))
            yield f"{me} joins, busy, waits", waiting._replace(blocked=(*others, who))
            return
        healed = healed._replace(number=1)
    elif held:
        healed = _unclaim(healed)
    if len(healed.records) >= cast.members:
        return  # (not a rule: more of them would only make the search longer)
    used = {one.token for one in (*healed.clients, *healed.records)} | {healed.stray.token if healed.stray else 0}
    token = next(fresh for fresh in range(1, 8) if fresh not in used)
    joined = _write(healed, Record(token, False, 0, (), ()))
    yield f"{me} joins", _with(joined, who, Client("member", token))


def _unclaim(state: State) -> State:
    return state._replace(claim=0, claim_until=0, free=1) if state.claim else state


def _of_old(state: State, design: Design) -> Iterator[tuple[str, State]]:
    """A client of the version before: exclusive, one message at a time, and members are a lease like any other."""
    healed = _heal(state, design)
    record = _record(state, OLD)
    if state.old is None:
        if healed.life == "there" and healed.free and healed.queue:
            item = healed.queue[0]
            taken = _seen(healed._replace(queue=healed.queue[1:], free=0, old=((1, *item),)), item)
            yield "the old client receives", _write(taken, Record(OLD, False, 0, (), ((1, *item),)))
        return
    yield "the old client crashes", state._replace(old=None)
    if record is None:
        yield "the old client acknowledges, refused: its lease is lost", healed._replace(old=None)
    elif state.life != "there":
        yield "the old client acknowledges, the queue is gone", _release(state)._replace(old=None)
    else:
        done = tuple(sorted((*state.acked, *(message for _, message, _ in record.owned))))
        yield "the old client acknowledges", _release(state)._replace(old=None, acked=done)
        yield "the old client renews", _write(state, record._replace(late=False))
        yield "the old client gives back", _release(_back(state, record.owned, design))._replace(old=None)


def _seen(state: State, item: Item) -> State:
    if item[0] in state.handed and not item[1]:
        state = state._replace(wronged=f"message {item[0]} was handed out again, and was not marked")
    return state._replace(handed=tuple(sorted({*state.handed, item[0]})))


def _of_plain(state: State) -> Iterator[tuple[str, State]]:
    if state.plain == "idle" and state.life == "there":
        yield "the plain client waits (BRPOP)", state._replace(plain="waiting", blocked=(*state.blocked, PLAIN))
        deleting = state._replace(life="deleting", plain="waiting", blocked=(*state.blocked, DELETER))
        yield "the plain client deletes: :bound first, then it waits (BRPOP)", deleting
    elif state.plain == "holding":
        yield "the plain client returns the role", state._replace(plain="idle", free=1)
        if state.queue:
            taken = tuple(sorted((*state.taken, state.queue[0][0])))
            yield "the plain client pops a message", state._replace(queue=state.queue[1:], taken=taken)


def _without_stray(state: State) -> State:
    """No original is on its way any more: the numbers of receives can begin anew, unless one is to be repeated."""
    assert state.stray is not None
    who, record = state.stray.who, _record(state, state.stray.token)
    client = state.clients[who]
    if client.pending is None and client.token == state.stray.token:
        state = _with(state, who, client._replace(sequence=0))
        if record is not None:
            state = _write(state, record._replace(sequence=0, last=()))
    return state._replace(stray=None)


def _of_nobody(state: State, cast: Cast, design: Design) -> Iterator[tuple[str, State]]:
    """What happens even if all clients are dead: time, the network, and a step of a client that is no member."""
    for record in state.records:
        if not record.late:
            yield f"the lease of {record.token} runs out", _write(state, record._replace(late=True))
    if state.claim_until == 1:
        yield "the claim runs out", state._replace(claim_until=2)
    if state.stray is not None:
        yield "the original is lost", _without_stray(state)
        after, _ = _execute(state, state.stray, False, cast, design)
        yield "the original arrives", _without_stray(after)
    if (healed := _heal(state, design)) != state:
        yield "a step of somebody heals", healed


def _transitions(state: State, cast: Cast, design: Design) -> Iterator[tuple[str, State, bool]]:
    """What can happen next: its name, the state after, and whether it needs nobody in particular to be alive."""
    for what, after in _of_nobody(state, cast, design):
        yield what, _serve(after), True
    for who in range(cast.clients):
        for what, after in _of_member(state, who, cast, design):
            yield what, _serve(after), False
    for what, after in _of_old(state, design) if cast.old else ():
        yield what, _serve(after), False
    for what, after in _of_plain(state) if cast.plain else ():
        yield what, _serve(after), False
    if cast.closes and not state.closed and state.life == "there":
        yield "the queue is closed", state._replace(closed=True), False


# What must be true


def _broken(state: State, cast: Cast) -> str:
    if state.wronged:
        return state.wronged
    places = state.free + state.claim + state.leased + (state.plain == "holding")
    expected = 0 if state.life == "gone" else 1
    if places != expected:
        return f"the token is in {places} places instead of {expected}"
    if state.life != "there":
        return ""
    flying = [message for record in state.records for _, message, _ in record.owned]
    everywhere = sorted((*(message for message, _ in state.queue), *flying, *state.acked, *state.taken))
    if len(set(everywhere)) < len(everywhere):
        return f"a message is in two places: {everywhere}"
    if everywhere != list(range(1, cast.messages + 1)):
        return f"a message is lost: {everywhere} are there"
    for who, client in enumerate(state.clients):
        record = _record(state, client.token)
        if client.phase == "member" and record is not None:
            step = client.pending
            sent = {*step.acks, *step.backs} if step is not None else set()
            mine = {one[0] for one in (*client.buffer, *client.hand)} - sent
            if step is not None and step.kind == "leave":
                continue
            if not mine <= {one[0] for one in record.owned}:
                return f"member {who} has a message in hand that went back, and its lease is valid"
    return ""


def search(cast: Cast, design: Design = Design()) -> Result:
    """Walk all states.

    From every state in which no plain client has the role, it must get free by time and healing alone, even if every
    client is dead by then.
    """
    return search_all(
        State(queue=tuple((message, False) for message in range(1, cast.messages + 1))),
        lambda state: _transitions(state, cast, design),
        lambda state: _broken(state, cast),
        lambda state: bool(state.free) or state.plain == "holding" or state.life == "gone",
        "the role never gets free again if all clients are dead",
    )
