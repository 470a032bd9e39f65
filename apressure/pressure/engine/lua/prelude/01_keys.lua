-- What the steps of a queue share, behind what all rooms share in `connection/lua`: names for the keys, and functions.
-- Every script receives the same KEYS, so that a key has one name in all of them. Those of a second queue follow.
-- KEYS: 1 the messages, 2 :bound, 3 :producer, 4 :consumer, 5 :producer_free, 6 :consumer_free,
--       7-10 :stats:{produced_messages,produced_bytes,consumed_messages,consumed_bytes}, 11 :not_full, 12 :closed,
--       and ours: 13 producer_lease, 14 consumer_lease, 15 producer_claim, 16 consumer_claim,
--       17 producer_claim_until, 18 consumer_claim_until, 19 inflight, 20 apart, 21 redelivered, 22 control,
--       23 delayed, 24 popped, 25 sooner, 26 room,
--       27 op;
--       in steps for messages, for which clients wait in line, then 28 turns, 29 watch
-- Scripts never roll back: so every script reads and checks everything before its first write.
local FIRST = 1
local BOUND, NOT_FULL, CLOSED = KEYS[2], KEYS[11], KEYS[12]
LIST = KEYS[1]
-- Deliveries have ascending numbers. INFLIGHT has the latest ones, the newest leftmost, each delivered for the first
-- time. APART has those that later ones have overtaken, or that had been given back: number -> 'times:message'.
local INFLIGHT, APART, REDELIVERED = KEYS[19], KEYS[20], KEYS[21]
CONTROL = KEYS[22]
-- DELAYED has messages by the time when they are due, in milliseconds; see `delay`. Other clients do not see them.
-- POPPED exists while one of them is in the line again; see `attempts_of`. SOONER has a token when a message is due
-- earlier than those know who wait for messages, or the limits
-- let one more be handed out; ROOM when there may be a place again where delayed messages took all.
-- Each client that waits there wakes, since none takes the token. The step that has it wait again deletes it.
local DELAYED, POPPED, SOONER, ROOM = KEYS[23], KEYS[24], KEYS[25], KEYS[26]
local SORTED = false  -- the step has seen delayed messages
OP, TURNS, WATCH = KEYS[27], KEYS[28], KEYS[29]
-- A role is a number. Added to one of these it gives the key: KEYS[LEASE + CONSUMER]. (Statistics: add it twice.)
local PRODUCER, CONSUMER = 0, 1
local HOLDER, FREE, MESSAGES, BYTES, LEASE, CLAIM, CLAIM_UNTIL = 3, 5, 7, 8, 13, 15, 17

-- Switch to the queue whose keys begin at KEYS[first]: from then on, all names and functions refer to it, except OP,
-- which is the record of the step.
local function switch_to(first)
  local i = first - 1
  FIRST = first
  LIST, BOUND, NOT_FULL, CLOSED = KEYS[i + 1], KEYS[i + 2], KEYS[i + 11], KEYS[i + 12]
  INFLIGHT, APART, REDELIVERED, CONTROL = KEYS[i + 19], KEYS[i + 20], KEYS[i + 21], KEYS[i + 22]
  DELAYED, POPPED, SOONER, ROOM = KEYS[i + 23], KEYS[i + 24], KEYS[i + 25], KEYS[i + 26]
  SORTED = false
  HOLDER, FREE, MESSAGES, BYTES, LEASE, CLAIM, CLAIM_UNTIL = i + 3, i + 5, i + 7, i + 8, i + 13, i + 15, i + 17
end

local function name_of(role)
  return role == PRODUCER and 'producer' or 'consumer'
end

local CLAIM_MS = 5000          -- a claim that is unused for this long belongs to a dead client
local LEASE_MS = 86400000      -- the longest lease
WATCH_MS = 4500                -- a client that watches and has not said so for this long is dead
local LOOK_MS = 2000           -- a client that waits in line looks this often (`ROUND` in waiting/rounds.py)
local SHARED, MEMBER = 'shared:1', 'member:'  -- the token of a lease that has members, and where their records are
local MOST_DUE = 100           -- how many delayed messages a step puts into the line
local MOST_PASSED = 1000000    -- how many elements of a list a step passes while it looks for some: some 30 ms

