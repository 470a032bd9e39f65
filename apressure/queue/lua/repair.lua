-- Mend what a look at the queue (examine) has found. Every condition is looked at again here, in one piece with what is
-- done about it; where only the passing of time tells a fault from an operation under way, nothing may have moved since
-- that look. So it is safe beside everybody who uses the queue, and safe to repeat.
-- KEYS: those of the prelude, then the keys that are the :bound of a queue which cannot exist beside this one
-- ARGV: 1 uid, 2 mark of all keys as it was then, 3 mark of the producer's keys, 4 mark of the consumer's keys,
--       5 '1' to mend everything, '0' for what never needs a human, 6 '1' if a holder is named, 7 the holder's name,
--       which is not the uid
-- Returns: {'ok', {what was done, each {kind, role or '', text, number}}}
local whole, marks = ARGV[2], {producer = ARGV[3], consumer = ARGV[4]}
local everything, named, holder = ARGV[5] == '1', ARGV[6] == '1', ARGV[7]
local done = {}
local function did(kind, role, text, number)
  done[#done + 1] = {kind, role and name_of(role) or '', text or '', number or 0}
end

local LISTS = {}
for _, i in ipairs({1, 5, 6, 11, 12, 15, 16, 19, 21}) do LISTS[i] = true end
local HASHES = {[13] = true, [14] = true, [20] = true}
local function is_counter(i) return i >= 7 and i <= 10 end

if collision(23) then return {'ok', done} end  -- what would be mended could belong to the other queue
local mixed = false  -- a key is of the wrong type
for i = 1, 21 do
  local kind = call('TYPE', KEYS[i]).ok
  local right = LISTS[i] and 'list' or HASHES[i] and 'hash' or 'string'
  if kind ~= 'none' and kind ~= right and not is_counter(i) then mixed = true end
end
local exists = call('EXISTS', BOUND) == 1
local still = mark({unpack(KEYS, 1, 21)}) == whole
local unmoved = {producer = mark_of(PRODUCER) == marks.producer, consumer = mark_of(CONSUMER) == marks.consumer}

for i = 7, 10 do
  local seen = look(KEYS[i])
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
  if not bound or bound < 0 then return {'ok', done} end
end
ignore_memory_limit()

-- What dead clients of ours have left.
local freed = false  -- a token has come back: whoever waits for it has to be served before anything else is done
for _, role in ipairs({PRODUCER, CONSUMER}) do
  local lease = call('HMGET', KEYS[LEASE + role], 'uid', 'deadline')
  local expired = lease[2] and now() >= tonumber(lease[2])
  local items = role == CONSUMER and (expired or not lease[2]) and in_flight() or 0
  local expires = call('GET', KEYS[CLAIM_UNTIL + role])
  local abandoned = expires and call('LLEN', KEYS[CLAIM + role]) > 0 and now() >= tonumber(expires)
  heal(role, bound)
  if expired then did('expired_lease', role, lease[1] or '', exists and items or 0) end
  if items > 0 and not exists then did('leftovers', role, '', items) end  -- they had nowhere to go
  if items > 0 and exists and not expired then did('orphaned_items', role, '', items) end
  if abandoned then did('abandoned_claim', role) end
  freed = freed or expired or abandoned
end

-- One token for each role: a lease has it, or the free list, or a claim.
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

local function hidden(role)
  return call('LLEN', KEYS[FREE + role]) == 0 and call('LLEN', KEYS[CLAIM + role]) == 0
      and call('EXISTS', KEYS[LEASE + role]) == 0
end

-- Whoever has the role is dead, says a human who has seen the name. The uid that is written instead is what keeps a
-- second human, or a repeat of this, from giving the role back again when somebody else has it by then.
local function give_back(role)
  if named and hidden(role) and unmoved[name_of(role)] and (call('GET', KEYS[HOLDER + role]) or '') == holder then
    call('SET', KEYS[HOLDER + role], ARGV[1])
    release(role)
    did('stuck_role', role, holder)
    freed = true
  end
end

if exists then
  -- Create makes the tokens in this order, and nobody who takes the producer role takes the permit before he has
  -- written his name: without name and permit, and with nothing that a producer or consumer ever wrote, Create died.
  if everything and still and call('EXISTS', NOT_FULL, LIST, CLOSED, unpack(KEYS, 13, 21)) == 0
      and call('EXISTS', KEYS[HOLDER + PRODUCER], KEYS[HOLDER + CONSUMER], unpack(KEYS, 7, 10)) == 0 then
    if call('LLEN', KEYS[FREE + PRODUCER]) == 0 then release(PRODUCER) end
    if call('LLEN', KEYS[FREE + CONSUMER]) == 0 then release(CONSUMER) end
    call('LPUSH', NOT_FULL, 1)
    did('half_created')
  end
  give_back(PRODUCER)
  give_back(CONSUMER)
  -- A producer that works step by step has the permit with it, and a consumer brings it after the message that it got:
  -- that is right as long as they may be alive.
  if not hidden(PRODUCER) and (still or not hidden(CONSUMER)) then
    local before = call('LLEN', NOT_FULL)
    normalise(bound)
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
  -- Somebody may be deleting it at this moment, and wait for a token. It is left to him as long as anything moves.
  if still and not freed and settled(PRODUCER) and settled(CONSUMER) then
    local messages = call('LLEN', LIST)
    if call('EXISTS', unpack(KEYS, 1, 12)) > 0 then
      call('DEL', unpack(KEYS, 1, 21))
      did('half_deleted', nil, '', messages)
    elseif call('EXISTS', unpack(KEYS, 13, 21)) > 0 then
      call('DEL', unpack(KEYS, 13, 21))
      did('leftovers')
    end
  end
end
return {'ok', done}
