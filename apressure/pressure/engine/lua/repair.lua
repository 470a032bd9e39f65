-- Repair what a snapshot (examine) has shown. It checks every condition again, in the same step. Where a fault looks
-- like an operation under way, nothing may have changed since the snapshot. So it is safe beside all clients, and to
-- repeat.
-- KEYS: those of the prelude, then the keys that are the :bound of a queue which cannot exist beside this one
-- ARGV: 1 uid, 2 mark of all keys in the snapshot, 3 mark of the producer's keys, 4 mark of the consumer's keys,
--       5 '1' for all repairs, '0' for those that never need a human, 6 '1' if a holder is named, 7 the holder's name,
--       which is not the uid
-- Returns: {'ok', {the repairs, each {kind, role or '', text, number}}}
local whole, marks = ARGV[2], {producer = ARGV[3], consumer = ARGV[4]}
local everything, named, holder = ARGV[5] == '1', ARGV[6] == '1', ARGV[7]
local done = {}
local function did(kind, role, text, number)
  done[#done + 1] = {kind, role and name_of(role) or '', text or '', number or 0}
end

local KINDS = {
  list = {1, 5, 6, 11, 12, 15, 16, 19, 21, 25, 26},
  hash = {13, 14, 20, 22},
  zset = {23},
}
local kind_of = {}
for kind, places in pairs(KINDS) do
  for _, i in ipairs(places) do kind_of[i] = kind end
end
local function is_counter(i) return i >= 7 and i <= 10 end

if collision(28) then return {'ok', done} end  -- the keys may belong to the other queue
local exists = call('EXISTS', BOUND) == 1
local still = mark({unpack(KEYS, 1, 26)}) == whole
local unmoved = {producer = mark_of(PRODUCER) == marks.producer, consumer = mark_of(CONSUMER) == marks.consumer}

local mixed = false  -- a key is of the wrong type
for i = 1, 26 do
  local kind = call('TYPE', KEYS[i]).ok
  if kind ~= 'none' and kind ~= (kind_of[i] or 'string') and not is_counter(i) then
    if everything and i >= 13 then
      local aside = KEYS[i] .. '.damaged-' .. now()
      call('RENAME', KEYS[i], aside)  -- not deleted: a human may want to see it
      did('wrong_type', nil, aside)
    else
      mixed = true
    end
  end
end

for i = 7, 10 do
  local seen = state_of(KEYS[i])
  local text = seen[3]
  local usable = seen[1] == 'none' or (seen[1] == 'string' and seen[2] < 20 and (integer(KEYS[i])))
  if exists and everything and not usable then
    call('DEL', KEYS[i])  -- the first write: it needs no memory
    call('SET', KEYS[i], 0)
    did('broken_statistic', i < 9 and PRODUCER or CONSUMER, seen[1] == 'string' and string.sub(text, 1, 100) or seen[1],
        seen[1] == 'string' and i or -i)
  end
end
if mixed then return {'ok', done} end
local bound = nil
if exists then
  bound = integer(BOUND)
  if not bound then return {'ok', done} end
end
ignore_memory_limit()

-- Repair what dead clients of ours left behind.
local freed = false  -- a token has come back: let a client that waits for it have it first
for _, role in ipairs({PRODUCER, CONSUMER}) do
  local uid = call('HGET', KEYS[LEASE + role], 'uid')
  -- A human says that the client of this name is dead. If it is alive, its token is invalid from now on.
  local shared = call('HGET', KEYS[LEASE + role], 'token') == SHARED
  local dead = named and not shared and unmoved[name_of(role)] and (uid or '') == holder
  local over = not lasts(role) or lasts(role) <= 0 or unreadable(role)
  local expired, items, abandoned, overlong = heal(role, bound, false, dead or over)
  if dead and expired and exists then call('SET', KEYS[HOLDER + role], ARGV[1]) end  -- as below
  if expired then did(over and 'expired_lease' or 'leased', role, uid or '', exists and items or 0) end
  if items > 0 and not exists then did('leftovers', role, '', items) end  -- without a queue they were deleted
  if items > 0 and exists and not expired then did('orphaned_items', role, '', items) end
  if overlong then did('overlong_lease', role, uid or '') end
  if shared and exists and not expired then
    -- (Members that live renew their lease all the time, so something moves. A late one is told that its share ended.)
    local removed, returned = heal_members(bound, named and holder or nil)
    if removed > 0 then did('expired_member', role, '', returned) end
    freed = freed or removed > 0
  end
  if abandoned then did('abandoned_claim', role) end
  freed = freed or expired or abandoned
end

-- Entries that other programs wrote. One in APART may be a delivery: it goes back, so that nothing is lost.
if everything then
  local fields, entries, proper, later = foreign()
  if #entries > 0 then
    call('LTRIM', REDELIVERED, 0, -#entries - #proper - 1)
    push('RPUSH', REDELIVERED, proper, 1, #proper)
    did('foreign_entry', nil, REDELIVERED, #entries)
  end
  if #fields > 0 and exists then
    put_back(fields)
    did('foreign_entry', nil, APART, #fields)
  end
  if #later > 0 and exists then
    local values = {}
    for i = 1, #later do values[3 * i - 2], values[3 * i - 1], values[3 * i] = now(), 0, later[i] end
    push('ZREM', DELAYED, later)
    OP = ':' .. now()  -- a name for the entries, instead of that of a series
    delay(0, values)
    OP = KEYS[27]
    did('foreign_entry', nil, DELAYED, #later)
  end
end

if bound and delayed() > 0 and integer(KEYS[MESSAGES], '0') and integer(KEYS[BYTES], '0') then promote(bound) end

-- Each role has one token, in a lease, the free list or a claim.
for _, role in ipairs({PRODUCER, CONSUMER}) do
  local leased = call('EXISTS', KEYS[LEASE + role])
  local free, claimed = call('LLEN', KEYS[FREE + role]), call('LLEN', KEYS[CLAIM + role])
  if leased + free + claimed > 1 then
    if leased == 1 then call('DEL', KEYS[FREE + role]) else call('LTRIM', KEYS[FREE + role], 0, 0) end
    if leased == 1 or free > 0 then
      call('DEL', KEYS[CLAIM + role], KEYS[CLAIM_UNTIL + role])
    else
      call('LTRIM', KEYS[CLAIM + role], 0, 0)
    end
    did('doubled_token', role, '', leased + free + claimed)
  end
end

-- A human says that the holder of this name is dead. Our uid replaces the name, so that a second human, or a repeat of
-- this step, does not give the role back again when another client has it.
local function give_back(role)
  if named and hidden(role) and unmoved[name_of(role)] and (call('GET', KEYS[HOLDER + role]) or '') == holder then
    call('SET', KEYS[HOLDER + role], ARGV[1])
    release(role)
    did('stuck_role', role, holder)
    freed = true
    return true
  end
end

if exists then
  -- Create makes the tokens in this order, and a producer writes its name before it takes the permit. So if there is no
  -- name, no permit, and nothing that a producer or consumer writes, the client died during Create.
  if everything and still and call('EXISTS', NOT_FULL, LIST, CLOSED, unpack(KEYS, 13, 26)) == 0
      and call('EXISTS', KEYS[HOLDER + PRODUCER], KEYS[HOLDER + CONSUMER], unpack(KEYS, 7, 10)) == 0 then
    if call('LLEN', KEYS[FREE + PRODUCER]) == 0 then release(PRODUCER) end
    if call('LLEN', KEYS[FREE + CONSUMER]) == 0 then release(CONSUMER) end
    call('LPUSH', NOT_FULL, 1)
    did('half_created')
  end
  give_back(PRODUCER)
  local died = give_back(CONSUMER)
  -- A producer that works step by step holds the permit, and a consumer brings it after it took a message: as long as
  -- they may be alive, a missing permit is no fault. A consumer that died may owe it to a waiting producer.
  -- A closed queue needs no permit, and other clients leave none.
  local permitted = not hidden(PRODUCER) and (still or not hidden(CONSUMER)) or died and unmoved.producer
  local before = call('LLEN', NOT_FULL)
  if permitted and (before > 0 or call('EXISTS', CLOSED) == 0) then
    normalise(bound, nil, before, true)
    local after = call('LLEN', NOT_FULL)
    if before < after then did('lost_permit', PRODUCER) end
    if before > after then did('extra_permits', PRODUCER, '', before - after) end
  end
elseif everything then
  give_back(PRODUCER)
  give_back(CONSUMER)
  local function settled(role)
    local waits = call('EXISTS', KEYS[LEASE + role], KEYS[CLAIM + role]) > 0
    return not waits and (call('LLEN', KEYS[FREE + role]) > 0 or call('EXISTS', KEYS[HOLDER + role]) == 0)
  end
  -- A client may be deleting the queue at this moment, and wait for a token. So nothing may have changed meanwhile.
  if still and not freed and settled(PRODUCER) and settled(CONSUMER) then
    local messages = call('LLEN', LIST)
    if call('EXISTS', unpack(KEYS, 1, 12)) > 0 then
      call('DEL', unpack(KEYS, 1, 26))
      did('half_deleted', nil, '', messages)
    elseif call('EXISTS', unpack(KEYS, 13, 26)) > 0 then
      call('DEL', unpack(KEYS, 13, 26))
      did('leftovers')
    end
  end
end
return {'ok', done}
