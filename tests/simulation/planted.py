"""Faults that are planted in a copy of the package, one at a time: the simulation must find each of them.

`nox -s simulate -- --planted` looks for them. The table is checked with the other unit tests, too: a line that no
longer fits the source fails there.
"""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Final

SEEDS: Final = 2000
"""Within so many runs each fault must be found."""


class StaleError(Exception):
    """The text that a fault replaces is not in the source, or more than once."""


@dataclasses.dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        name: What goes wrong.
        path: The file, below the package.
        old: What the fault replaces: a text that is there once.
        new: What it is replaced by.
        shows: A regular expression for how it is found; so an error that the planting made itself is none.
    """

    name: str
    path: str
    old: str
    new: str
    shows: str

    def planted_in(self, text: str) -> str:
        """Return the text of the file with the fault."""
        if (count := text.count(self.old)) != 1:
            raise StaleError(f"{self.name}: the text to replace is {count} times in {self.path}, not once: {self.old}")
        return text.replace(self.old, self.new)

    def plant(self, package: Path) -> None:
        """Plant it in a package."""
        path = package / self.path
        path.write_text(self.planted_in(path.read_text()))


def copy_of(package: Path, place: Path) -> Path:
    """Copy a package into a directory."""
    return Path(shutil.copytree(package, place / package.name, ignore=shutil.ignore_patterns("__pycache__")))


FAULTS: Final = (
    Fault(
        "a repeated put is stored twice",
        "pressure/engine/lua/put.lua",
        "if before then return before end\nlocal bound, wrong, length, permits",
        "local bound, wrong, length, permits",
        r"came as attempt 1 after \[1|after it was acknowledged",
    ),
    Fault(
        "a move does not test whether the message is in flight",
        "pressure/engine/lua/move.lua",
        "local there = all_in_flight(first, last, oldest, next_number) and (not shared or owns(me, first, last))",
        "local there = true",
        "lost or doubled|messages produced",
    ),
    Fault(
        "a lease is settled without its token",
        "pressure/engine/lua/settle.lua",
        "if lease[1] ~= ARGV[1] or not natural(lease[2]) then",
        "if not natural(lease[2]) then",
        "came as attempt|was acknowledged twice|lost",
    ),
    Fault(
        "an acknowledgement frees the messages before it, too",
        "pressure/engine/lua/prelude/06_messages.lua",
        "        set_apart(oldest, first)\n        oldest = first\n",
        "",
        "lost|messages produced",
    ),
    Fault(
        "a token that a client did not use comes back twice",
        "pressure/engine/lua/prelude/05_healing.lua",
        "    call('DEL', KEYS[CLAIM + role], KEYS[CLAIM_UNTIL + role])\n    release(role)\n",
        "    release(role)\n",
        "2 clients may have the (producer|consumer) role",
    ),
    Fault(
        "not_full is not normalised after a receive",
        "pressure/engine/lua/receive.lua",
        "  normalise(bound, usual and length - taken or nil, usual and permits or nil, taken > 0)\n",
        "",
        "permits to put",
    ),
    Fault(
        "the claim of a dead client is never returned",
        "pressure/engine/lua/prelude/05_healing.lua",
        "      call('DEL', KEYS[CLAIM + role], KEYS[CLAIM_UNTIL + role])\n      release(role)\n",
        "      call('DEL', KEYS[CLAIM + role], KEYS[CLAIM_UNTIL + role])\n",
        "0 clients may have the (producer|consumer) role",
    ),
    Fault(
        "a stage ends at the close, with a batch in hand",
        "service/stages/stage.py",
        "            if all_settled:\n                return\n",
        "            return\n",
        "lost or doubled",
    ),
    Fault(
        "the deliveries of a dead member are not given back",
        "pressure/engine/lua/prelude/09_members.lua",
        "returned = complete and put_back(numbers_in(ranges, alive)) or return_orphans(alive)",
        "returned = 0",
        "how many members have them",
    ),
    Fault(
        "a dead letter is copied instead of moved",
        "pressure/engine/lua/prelude/08_dead_letters.lua",
        "if to == kept then attempts[#attempts + 1] = tried[i] else died[#died + 1] = tried[i] - 1 end",
        "if to == dead then died[#died + 1], kept[#kept + 1] = tried[i] - 1, all[i] end\n"
        "        attempts[#attempts + 1] = tried[i]",
        "messages produced|is a dead letter|came as attempt",
    ),
    Fault(
        "what comes again is not marked",
        "pressure/engine/lua/prelude/04_deliveries.lua",
        "  push('RPUSH', REDELIVERED, tried, 1, #tried)\n  push('HDEL', APART, sequences, 1, #sequences)\n",
        "  push('HDEL', APART, sequences, 1, #sequences)\n",
        r"came as attempt 1 after \[1",
    ),
    Fault(
        "what is given back goes to the end of the queue",
        "pressure/engine/lua/prelude/04_deliveries.lua",
        "push('RPUSH', LIST, payloads, 1, #payloads)",
        "push('LPUSH', LIST, payloads, 1, #payloads)",
        r"came before \[|came as attempt",
    ),
    Fault(
        "a message is put into a closed queue",
        "pressure/engine/lua/put.lua",
        "if closed == 1 then return {'closed'} end",
        "",
        "was put into a closed queue",
    ),
    Fault(
        "a repeated put for later is stored twice",
        "pressure/engine/lua/delay.lua",
        "if before then return before end\n",
        "",
        "came as attempt|after it was acknowledged|before its time",
    ),
    Fault(
        "what is due stays delayed, too",
        "pressure/engine/lua/prelude/04_later.lua",
        "  push('LPUSH', LIST, messages)\n  push('ZREM', DELAYED, due)\n",
        "  push('LPUSH', LIST, messages)\n",
        "came as attempt|after it was acknowledged|messages produced|the bound is|into a closed queue",
    ),
    Fault(
        "what is due is removed, and not put",
        "pressure/engine/lua/prelude/04_later.lua",
        "  push('LPUSH', LIST, messages)\n  push('ZREM', DELAYED, due)\n",
        "  push('ZREM', DELAYED, due)\n",
        "messages produced",
    ),
    Fault(
        "a delayed message comes too early",
        "pressure/engine/lua/prelude/04_later.lua",
        "'-inf', now(), 'LIMIT'",
        "'-inf', now() + 40, 'LIMIT'",
        "before its time",
    ),
    Fault(
        "a delay is shorter than it was to be",
        "connection/lua/02_values.lua",
        "or now() + tonumber(due)\n",
        "or now() + tonumber(due) - 40\n",
        "came .* s before its time",
    ),
    Fault(
        "delayed messages do not count towards the bound",
        "pressure/engine/lua/prelude/03_roles.lua",
        "math.max(0, bound - length - delayed())",
        "math.max(0, bound - length)",
        r"messages wait after a put, \d+ are delayed, the bound is",
    ),
    Fault(
        "a retry loses its attempts when it is due",
        "pressure/engine/lua/prelude/04_later.lua",
        "    push('LPUSH', REDELIVERED, tried)\n",
        "",
        r"came as attempt 1 after \[1",
    ),
    Fault(
        "a message that waits for its retry stays in flight, too",
        "pressure/engine/lua/prelude/04_later.lua",
        "  push('HDEL', APART, gone)\n",
        "",
        "messages produced",
    ),
    Fault(
        "a closed queue does not wait for what is delayed",
        "pressure/engine/lua/receive.lua",
        "  if delayed() > 0 then return {'draining', -1, wait_for_due()} end\n",
        "",
        "lost: |QueueStatistics.* delayed=[1-9]",
    ),
    Fault(
        "two services put the same occasion",
        "connection/schedules/__init__.py",
        "elseif kept ~= was then answer = {'changed'} end",
        "end",
        "messages were put, and the schedules count",
    ),
    Fault(
        "an occasion is forgotten by a service that pauses the schedule at the same time",
        "connection/schedules/lua/write.lua",
        "if kept ~= ARGV[2] then return kept == ARGV[3] and 1 or 0 end",
        "if kept == '' and ARGV[2] ~= '' then return 0 end",
        "messages were put, and the schedules count|of all occasions, one was not put",
    ),
    Fault(
        "an occasion is noted, and not put",
        "connection/schedules/__init__.py",
        "if %s then\n",
        "if %s or true then\n",
        "messages were put, and the schedules count",
    ),
    Fault(
        "an occasion is put before its time",
        "core/occasions.py",
        "if self.paused or due is None or due > now:",
        "if self.paused or due is None or due > now + 40:",
        "an occasion of",
    ),
    Fault(
        "of the occasions that were missed, one is put instead of all",
        "core/occasions.py",
        "return Look(True, self.put(now).after(due))",
        "return Look(True, self.put(now).after(now))",
        "of all occasions, one was not put",
    ),
    Fault(
        "an event is handed out that has expired",
        "events/engine/lua/pop.lua",
        "elseif ends[i] and has_expired(ends[i], found[i]) then",
        "elseif false then",
        "handed out after they had expired",
    ),
    Fault(
        "an event expires before its time",
        "events/engine/lua/prelude.lua",
        "return natural(at) and natural(at) <= now() and",
        "return natural(at) and natural(at) <= now() + 40 and",
        "expired before their time",
    ),
    Fault(
        "an event that has expired is no dead letter",
        "events/engine/lua/pop.lua",
        "  call('LPUSH', DEAD, letter_of(unpack(dead[i])))\n",
        "",
        "are gone",
    ),
    Fault(
        "a rate forgets what was handed out",
        "connection/lua/05_control.lua",
        "  call('HSET', CONTROL, 'next', written(due))\n",
        "",
        "were handed out in .* ms",
    ),
    Fault(
        "a rate counts from a time that the clock has been set back from",
        "connection/lua/05_control.lua",
        "    if late then call('HSET', CONTROL, 'next', string.format('%.3f', last)) end\n",
        "",
        "stuck: ",
    ),
    Fault(
        "a hold keeps nothing",
        "connection/lua/05_control.lua",
        "most, units, after = 0, 0, math.max(after or 0, left)",
        "after = math.max(after or 0, left)",
        "were handed out while the queue is held",
    ),
    Fault(
        "a hold gets shorter by another one",
        "connection/lua/05_control.lua",
        "if tonumber(value) > hold_left() then",
        "if true then",
        "were handed out while the queue is held|a hold ended",
    ),
    Fault(
        "a hold lasts as much longer as the clock is set back",
        "connection/lua/05_control.lua",
        "local left = math.min(held - now(), longest or 0)",
        "local left = held - now()",
        "stuck: ",
    ),
    Fault(
        "members do not count what is in flight",
        "pressure/engine/lua/receive_shared.lua",
        "allowance(in_flight())",
        "allowance()",
        "are in flight, and the limit is",
    ),
    Fault(
        "one that consumes alone does not count what is in flight",
        "pressure/engine/lua/receive.lua",
        "allowance(in_flight())",
        "allowance()",
        "are in flight, and the limit is",
    ),
    Fault(
        "what is settled does not wake the one that waits for it",
        "pressure/engine/lua/prelude/05_healing.lua",
        "  if settled > 0 then wake_limited() end\n",
        "",
        "stuck: ",
    ),
    Fault(
        "a change of limits wakes nobody",
        "pressure/engine/lua/limit.lua",
        "wake(SOONER)\n",
        "",
        "stuck: ",
    ),
    Fault(
        "those that limits keep poll a closed queue",
        "pressure/engine/lua/prelude/05_healing.lua",
        "local ended = closed == 1 and 1 or nil",
        "local ended",
        "somebody polls",
    ),
    Fault(
        "one that limits keep does not learn that others have taken the rest of a closed queue",
        "core/waiting.py",
        'waiters = self._waiters["draining"] if wait.reason == "limited" else waiters[:1]',
        "waiters = waiters[:1]",
        "stuck: ",
    ),
    Fault(
        "a client that watches starves while a member takes more than its share",
        "pressure/engine/lua/prelude/09_members.lua",
        "  return math.max(watched and 0 or 1, share)\n",
        "  return math.max(1, share)\n",
        "a member has .*, while another one waits",
    ),
    Fault(
        "what is released was an attempt",
        "pressure/engine/lua/prelude/04_deliveries.lua",
        " or released and released[number] then",
        " then",
        "came as attempt",
    ),
    Fault(
        "a put with a dedup id whose reply was lost is looked at again",
        "connection/dedup/lua/before.lua",
        "  answer = {'dedup', later and '' or result}\n",
        "",
        "lost: |refused, and put|both put",
    ),
    Fault(
        "a put with a dedup id leaves no record of what it has refused",
        "connection/dedup/lua/after.lua",
        "  if told ~= '' then redis.call('SET', series, sequence .. ':' .. told, 'PX', RECORD_MS) end\n",
        "",
        "lost: |refused, and put|both put",
    ),
    Fault(
        "two with a dedup id are put in one step",
        "connection/dedup/lua/before.lua",
        "ARGV[from + 1], fresh[dedup_id] or {",
        "ARGV[from + 1], {",
        "both put",
    ),
    Fault(
        "a dedup id counts longer than its window",
        "connection/dedup/lua/before.lua",
        "return tonumber(ends) > time and token or nil",
        "return token",
        "refused for nothing",
    ),
    Fault(
        "a dedup id counts though its message is done",
        "connection/dedup/lua/before.lua",
        "return is_unfinished(id) and token or nil",
        "return token",
        "refused for nothing",
    ),
    Fault(
        "a dedup id is forgotten too early",
        "connection/dedup/lua/before.lua",
        "if not token_in(some[i + 1]) then",
        "if true then",
        "both put",
    ),
    Fault(
        "a dedup id is noted for a message that found no room",
        "connection/dedup/lua/after.lua",
        "    letter = put and string.sub(put, place, place) or ''\n",
        "    letter = put and string.sub(put, place, place) or ''\n    if letter == '' then letter = 'k' end\n",
        "lost: |refused for nothing",
    ),
    Fault(
        "a message in flight is replaced",
        "events/engine/batching.py",
        "  if redis.call('HEXISTS', KEYS[20], id) == 1 then return true end\n",
        "  if true then return true end\n",
        "lost: ",
    ),
    Fault(
        "a key's place is free while its message is delivered again",
        "events/engine/lua/prelude.lua",
        "  push('RPUSH', UNCLAIMED, back)\n",
        "  leave_lines(back)\n  push('RPUSH', UNCLAIMED, back)\n",
        "the limit of its key is|are admitted, and noted|was delivered before",
    ),
    Fault(
        "a key's place is free while its message waits for a retry",
        "events/engine/lua/prelude.lua",
        "  delay(scores, pairs_)\n",
        "  leave_lines(ids)\n  delay(scores, pairs_)\n",
        "the limit of its key is|are admitted, and noted|was delivered before",
    ),
    Fault(
        "one that is done frees all places of its key",
        "connection/lua/06_keys.lua",
        "without(found[key], function(id) return gone[id] end)",
        "''",
        "the limit of its key is|are admitted, and noted",
    ),
    Fault(
        "the place of a message that is done stays taken",
        "connection/lua/06_keys.lua",
        "      if found[key] == pack(known[key]) then\n        found[key] = ''\n",
        "      if found[key] == pack(known[key]) then\n",
        "are admitted, and noted|nothing waits, and there is|no turn|stuck: ",
    ),
    Fault(
        "a key has no turn when one of its messages is done",
        "connection/lua/06_keys.lua",
        "    keep_admitted(some, found, terms)\n    call_up(some)\n",
        "    keep_admitted(some, found, terms)\n",
        "have parked messages and places, and no turn",
    ),
    Fault(
        "a consumer does not see a key that has its turn",
        "events/engine/lua/prelude.lua",
        "  local id = restock()\n",
        "  local id\n",
        "have a turn, and nobody sees that|stuck: ",
    ),
    Fault(
        "a message that is parked is forgotten when its key has its turn",
        "connection/lua/06_keys.lua",
        "        out[#out + 1], ids[#ids + 1] = first[1], id\n",
        "        out[#out + 1] = first[1]\n",
        "lost or doubled",
    ),
    Fault(
        "a message that is parked goes to the end of its line when the queue has many",
        "connection/lua/06_keys.lua",
        "          local place = string.format('%013.0f', number)\n",
        "          local place = string.format('%013.0f', FIRST * 2 - number)\n",
        "was delivered before",
    ),
    Fault(
        "what comes again goes to the end of the line",
        "events/engine/lua/prelude.lua",
        "  push('RPUSH', UNCLAIMED, back)\n",
        "  push('LPUSH', UNCLAIMED, back)\n",
        "was delivered before what came again",
    ),
    Fault(
        "what a get gives back has lost its key",
        "events/engine/lua/pop.lua",
        "kept[#ids] = (state and '#' .. pack(string.sub(state, 2)) or '') .. (ends[i] or '')",
        "kept[#ids] = ends[i] or ''",
        "was delivered|gone, and known|the limit of its key is",
    ),
    Fault(
        "a dead letter loses its key",
        "events/engine/lua/prelude.lua",
        "  key = key and '#' .. pack(key) or ''\n",
        "  key = ''\n",
        "the limit of its key is|was delivered",
    ),
    Fault(
        "a message that is deleted while it is parked stays in its line",
        "connection/lua/06_keys.lua",
        "  push('ZREM', LINES, members)\n",
        "",
        "lost or doubled",
    ),
    Fault(
        "a message that was admitted without a limit does not count when one is set",
        "connection/lua/06_keys.lua",
        "  push('HSET', KEYED, noted)\n",
        "",
        "are admitted, and noted|the limit of its key is",
    ),
    Fault(
        "a reply is removed that was not read",
        "connection/requests/lua/replies.lua",
        "0, -done - 1)",
        "0, -done - 2)",
        "s before its asker gave up|NoReplyError",
    ),
    Fault(
        "those who ask look for replies once",
        "connection/requests/replies.py",
        "                    await park([self._waiter], since, SLICE)\n",
        "                    return\n",
        "s before its asker gave up|NoReplyError",
    ),
    Fault(
        "the acknowledgement of a request takes its reply away",
        "events/engine/lua/settle.lua",
        "reply(settled, how == 'ack' and 'n' or replies)",
        "reply(settled, 'n')",
        "was acknowledged without a reply",
    ),
    Fault(
        "an acknowledgement that travels with a receive leaves its reply behind",
        "pressure/leases/steps.py",
        "if unsettled.failed_before(acks) or unsettled.replies_to(acks):",
        "if unsettled.failed_before(acks):",
        "TimeoutError|s before its asker gave up|NoReplyError",
    ),
    Fault(
        "a request that has expired is a dead letter",
        "events/engine/lua/pop.lua",
        "      if asker_of(some[i]) then\n",
        "      if false then\n",
        "dead_letters",
    ),
    Fault(
        "what a step behind a wait has taken is handed out, although the next step brings it, too",
        "pressure/leases/steps.py",
        "            if self.answer is not step:\n                return\n",
        "",
        r"came as attempt 1 after \[1",
    ),
)
"""Repeats, leases, tokens, permits, ends, members, dead letters, marks, order, delays, schedules, expiry: one each.

Limits have several: rate, holds, concurrency, who is woken, shares, and attempts. So have dedup ids, keys and requests.
"""
