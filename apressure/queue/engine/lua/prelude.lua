-- What the steps of a queue share: names for the keys, and functions. A script gets those functions that it uses.
-- Every script receives the same KEYS, so that a key has one name in all of them. Those of a second queue follow.
-- KEYS: 1 the messages, 2 :bound, 3 :producer, 4 :consumer, 5 :producer_free, 6 :consumer_free,
--       7-10 :stats:{produced_messages,produced_bytes,consumed_messages,consumed_bytes}, 11 :not_full, 12 :closed,
--       and ours: 13 producer_lease, 14 consumer_lease, 15 producer_claim, 16 consumer_claim,
--       17 producer_claim_until, 18 consumer_claim_until, 19 inflight, 20 apart, 21 redelivered, 22 paused,
--       23 op;
--       in steps for messages, for which clients wait in line, then 24 turns, 25 watch
-- Scripts never roll back: so every script reads and checks everything before its first write.
local call = redis.call
local FIRST = 1
local LIST, BOUND, NOT_FULL, CLOSED = KEYS[1], KEYS[2], KEYS[11], KEYS[12]
-- Deliveries have ascending numbers. INFLIGHT has the latest ones, the newest leftmost, each delivered for the first
-- time. APART has those that later ones have overtaken, or that had been given back: number -> 'times:message'.
local INFLIGHT, APART, REDELIVERED, OP = KEYS[19], KEYS[20], KEYS[21], KEYS[23]
-- PAUSED exists while consumers of ours take nothing: 'since:uid', with the client that paused the queue.
local PAUSED = KEYS[22]
-- TURNS has a token for the next client in line, WATCH says which client watches the queue (see `watches`).
local TURNS, WATCH = KEYS[24], KEYS[25]
-- A role is a number. Added to one of these it gives the key: KEYS[LEASE + CONSUMER]. (Statistics: add it twice.)
local PRODUCER, CONSUMER = 0, 1
local HOLDER, FREE, MESSAGES, BYTES, LEASE, CLAIM, CLAIM_UNTIL = 3, 5, 7, 8, 13, 15, 17

-- Switch to the queue whose keys begin at KEYS[first]: from then on, all names and functions refer to it, except OP,
-- which is the record of the step.
local function switch_to(first)
  local i = first - 1
  FIRST = first
  LIST, BOUND, NOT_FULL, CLOSED = KEYS[i + 1], KEYS[i + 2], KEYS[i + 11], KEYS[i + 12]
  INFLIGHT, APART, REDELIVERED, PAUSED = KEYS[i + 19], KEYS[i + 20], KEYS[i + 21], KEYS[i + 22]
  HOLDER, FREE, MESSAGES, BYTES, LEASE, CLAIM, CLAIM_UNTIL = i + 3, i + 5, i + 7, i + 8, i + 13, i + 15, i + 17
end

local function name_of(role)
  return role == PRODUCER and 'producer' or 'consumer'
end

local CLAIM_MS = 5000          -- a claim that is unused for this long belongs to a dead client
local LEASE_MS = 86400000      -- the longest lease
local RECORD_MS = 300000       -- how long the result of a step is kept for its repeat
local WATCH_MS = 4500          -- a client that watches and has not said so for this long is dead
local LOOK_MS = 2000           -- a client that waits in line looks this often (`ROUND` in connection/rounds.py)
local SHARED, MEMBER = 'shared:1', 'member:'  -- the token of a lease that has members, and where their records are
local CHUNK = 1000             -- arguments of one command; Lua's stack holds fewer than 8000
local MOST_PASSED = 1000000    -- how many elements of a list a step passes while it looks for some: some 30 ms

local clock
local function now()
  if not clock then
    local time = call('TIME')
    clock = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
  end
  return clock
end

-- The number in a text of ours, or nil: another program may have written there.
-- (Lua writes numbers of up to 14 digits without an exponent.)
local function natural(text)
  return text and #text <= 13 and string.find(text, '^%d+$') and tonumber(text) or nil
end

-- Returns: the number at key | nil, the answer that says what is wrong
-- default: the text for a key that does not exist; nil where it must exist
local function integer(key, default)
  local text = call('GET', key) or default
  if not text then return nil, {'missing'} end
  if #text > 18 or not (text == '0' or string.match(text, '^%-?[1-9]%d*$')) then
    return nil, {'corrupt', key .. ' is not an integer that a queue can use'}
  end
  return tonumber(text)
end

-- Check what a step needs before it writes: the bound is a number, the lists are lists (otherwise LLEN raises an
-- error), and the role's statistics are numbers.
-- Returns: the bound, nil, length of the queue, permits in :not_full |
--          the bound or nil, an answer that says what is wrong
local function check(role)
  local bound, wrong = integer(BOUND)
  if wrong then return nil, wrong end
  local length, permits = call('LLEN', LIST), call('LLEN', NOT_FULL)
  call('LLEN', KEYS[FREE + PRODUCER])
  call('LLEN', KEYS[FREE + CONSUMER])
  local _
  _, wrong = integer(KEYS[MESSAGES + 2 * role], '0')
  if not wrong then _, wrong = integer(KEYS[BYTES + 2 * role], '0') end
  return bound, wrong, length, permits
end

local function record(sequence, result)
  call('SET', OP, sequence .. ':' .. result, 'PX', RECORD_MS)
end

-- The result of this step, if it was carried out before and its reply was lost; otherwise nil.
-- A step may also arrive after its own repeat, or after a later step, from a connection that its client has given up.
-- So a repeat leaves a record, whatever its outcome (unless there is no memory left).
local function recall(sequence, repeated)
  local last, result = string.match(call('GET', OP) or '', '^(%d+):(%d+)$')
  local undone = last == sequence and result == '0' and repeated == '1'
  if not last or undone or tonumber(last) < tonumber(sequence) then
    if repeated == '1' then redis.pcall('SET', OP, sequence .. ':0', 'PX', RECORD_MS) end
    return nil
  end
  -- A write, so that a WAIT that follows on this new connection waits for replicas.
  call('PEXPIRE', OP, RECORD_MS)
  return last == sequence and tonumber(result) or 0
end

-- Has this step arrived after its own repeat? For steps without a record of their own: their repeat sees what they did.
local function too_late(sequence, repeated)
  return recall(sequence, repeated) and repeated ~= '1'
end

-- Redis checks maxmemory only at the first write of a script. Consumers make room and must work on a full server: this
-- write changes nothing, and is never refused.
local function ignore_memory_limit()
  call('HDEL', KEYS[LEASE + CONSUMER], '')
end

-- The opposite, for steps that push: a server that is out of memory refuses this write. It keeps the record, which a
-- late step may need.
local function respect_memory_limit()
  call('SET', OP, call('GET', OP) or ':', 'PX', RECORD_MS)
end

-- The index of the first key from KEYS[first] on that exists, or nil. Each is the :bound of a queue that this one
-- collides with.
local function collision(first)
  for i = first, #KEYS do
    if call('EXISTS', KEYS[i]) == 1 then return i end
  end
end

-- Create the queue, and clear what an earlier queue of the name left behind.
local function make(bound)
  call('SET', BOUND, bound)
  for i = FIRST, FIRST + 21 do
    if KEYS[i] ~= BOUND then call('DEL', KEYS[i]) end
  end
  call('LPUSH', KEYS[FREE + PRODUCER], 1)
  call('LPUSH', KEYS[FREE + CONSUMER], 1)
  call('LPUSH', NOT_FULL, 1)
end

local function release(role)
  if call('LPUSH', KEYS[FREE + role], 1) > 1 then call('LTRIM', KEYS[FREE + role], 0, 0) end
end

-- Is the role's token missing? Then a client that works step by step has it, or died with it.
local function hidden(role)
  return call('EXISTS', KEYS[FREE + role], KEYS[CLAIM + role], KEYS[LEASE + role]) == 0
end

-- Make :not_full hold one token while there is room, and none otherwise. A bound below 0 is no bound.
-- A missing token may be with a client that works step by step: a producer holds it while it puts, and a consumer
-- brings it after it took a message. A second token would let a put exceed the bound. So while a role is hidden, only a
-- step that took messages adds one.
-- length, permits: the lengths of the two lists, where the step knows them.
-- took: this step took messages, or a token is due for another reason.
local function normalise(bound, length, permits, took)
  permits = permits or call('LLEN', NOT_FULL)
  if bound <= 0 or (length or call('LLEN', LIST)) < bound then
    if permits > 1 then
      call('LTRIM', NOT_FULL, 0, 0)
    elseif permits == 0 and (took or bound <= 0 or not (hidden(PRODUCER) or hidden(CONSUMER))) then
      call('LPUSH', NOT_FULL, 1)
    end
  elseif permits > 0 then
    call('DEL', NOT_FULL)
  end
end

-- How many messages may be put. While a consumer that works step by step owes a token for a message that it took, one
-- place belongs to the client that will get that token.
-- length, permits: as above; permits may be nil.
local function places(bound, length, permits)
  local free = math.max(0, bound - length)
  if free > 0 and (permits or call('LLEN', NOT_FULL)) == 0 and hidden(CONSUMER) then return free - 1 end
  return free
end

-- fakeredis has no digests: there, a message stands for itself.
local digest_of = redis.sha1hex or function(message) return message end

-- Run a command with any number of values, in chunks. Returns: the answer to the last command
local function push(command, key, values, first, last)
  local answer
  for i = first, last, CHUNK do
    answer = call(command, key, unpack(values, i, math.min(i + CHUNK - 1, last)))
  end
  return answer
end

-- Returns: the number of the oldest delivery in INFLIGHT, the number after its newest one
local function numbers()
  local next_number = natural(call('HGET', KEYS[LEASE + CONSUMER], 'next')) or 1e15  -- unknown: above all others
  return next_number - call('LLEN', INFLIGHT), next_number
end

-- How many messages are in flight.
local function in_flight()
  return call('LLEN', INFLIGHT) + call('HLEN', APART)
end

-- Move the deliveries before a number from INFLIGHT to APART.
-- oldest: the number of the oldest delivery in INFLIGHT.
local function set_apart(oldest, number)
  local messages = number > oldest and call('LRANGE', INFLIGHT, oldest - number, -1) or {}
  local fields = {}
  for i = #messages, 1, -1 do
    fields[#fields + 1], fields[#fields + 2] = number - i, '1:' .. messages[i]
  end
  push('HSET', APART, fields, 1, #fields)
  if #messages > 0 then call('LTRIM', INFLIGHT, 0, -#messages - 1) end
end

-- Returns: the message of a delivery in APART, how often it has been delivered, true if another program wrote the entry
--          (then all of it counts as a message, so that nothing is lost) | nil
local function look_apart(number)
  local entry = call('HGET', APART, number)
  if not entry then return nil end
  local colon = string.find(entry, ':', 1, true)
  local times = colon and natural(string.sub(entry, 1, colon - 1))
  if not times then return entry, 1, true end
  return string.sub(entry, colon + 1), times
end

-- Put deliveries from APART back on the right end, the oldest rightmost, and record how often each was delivered.
-- sequences: their numbers, ascending.
-- untouched: deliveries from this number on were never handed out, and do not count; or nil.
local function put_back(sequences, untouched)
  local payloads, tried = {}, {}
  for i = #sequences, 1, -1 do
    local payload, attempts = look_apart(sequences[i])
    if payload then
      if untouched and (natural(sequences[i] .. '') or 0) >= untouched then attempts = attempts - 1 end
      payloads[#payloads + 1] = payload
      if attempts > 0 then tried[#tried + 1] = attempts .. ':' .. digest_of(payload) end
    end
  end
  call('HDEL', APART, '')  -- changes nothing; but a user without the right to HDEL fails here, before the RPUSH
  push('RPUSH', LIST, payloads, 1, #payloads)
  push('RPUSH', REDELIVERED, tried, 1, #tried)
  push('HDEL', APART, sequences, 1, #sequences)
  return #payloads
end

-- The same for any deliveries.
local function return_deliveries(sequences, untouched)
  local oldest, next_number = numbers()
  if #sequences > 0 then set_apart(oldest, math.min(next_number, sequences[#sequences] + 1)) end
  return put_back(sequences, untouched)
end

-- The same for all deliveries. LMOVE needs no right to read messages: producers heal, too, and have no such right.
local function return_everything(untouched)
  local oldest, next_number = numbers()
  local tried = {}
  for number = next_number - 1, oldest, -1 do
    local payload = call('LMOVE', INFLIGHT, LIST, 'LEFT', 'RIGHT')
    if not untouched or number < untouched then tried[#tried + 1] = '1:' .. digest_of(payload) end
  end
  push('RPUSH', REDELIVERED, tried, 1, #tried)
  local sequences = call('HKEYS', APART)
  table.sort(sequences, function(a, b) return (natural(a) or 0) < (natural(b) or 0) end)
  return next_number - oldest + put_back(sequences, untouched)
end

-- How long a role's lease still lasts: at most its duration, since the server's clock may have been set back.
-- Returns: milliseconds (0 or less: it has expired), true if its deadline is further away than its duration |
--          nil if it has no readable deadline
local function lasts(role)
  local lease = call('HMGET', KEYS[LEASE + role], 'deadline', 'duration')
  local deadline = natural(lease[1])
  if not deadline then return nil end
  local left, longest = deadline - now(), natural(lease[2]) or LEASE_MS
  return math.min(left, longest), left > longest
end

-- Has another program overwritten the number of the next delivery? Then the lease is invalid, also for its owner.
local function unreadable(role)
  local next_number = call('HGET', KEYS[LEASE + role], 'next')
  return next_number and not natural(next_number)
end

-- Heal a role: the token of an expired lease or an abandoned claim goes back, and messages in flight without a valid
-- lease return to the queue. A lease that would last too long is shortened, not ended: its owner may be alive.
-- bound: the queue's bound; nil where the queue is gone: then messages in flight are deleted.
-- careful: the step pushes, and must not use healing to get past the memory limit.
-- ended: the lease counts as expired, whatever its deadline.
-- Returns: true if the lease was expired, number of messages that were in flight without a valid lease,
--          true if a claim was abandoned, true if the lease was too long
local function heal(role, bound, careful, ended)
  local left, overlong = lasts(role)
  local leased = left or call('EXISTS', KEYS[LEASE + role]) == 1
  local expired = leased and (ended or not left or left <= 0)
  local items, abandoned = 0, false
  if role == CONSUMER and (expired or not leased) then items = in_flight() end
  local orphaned = items > 0
  overlong = overlong and not expired
  if expired or orphaned or overlong then
    call('LLEN', REDELIVERED)
    call('LLEN', KEYS[FREE + role])
    if careful then respect_memory_limit() else ignore_memory_limit() end
  end
  if overlong then call('HSET', KEYS[LEASE + role], 'deadline', now() + left) end
  if orphaned and bound then
    return_everything()
    normalise(bound)
  elseif orphaned then
    call('DEL', INFLIGHT, APART)
  end
  if expired then
    call('DEL', KEYS[LEASE + role])
    release(role)
  end
  if call('LLEN', KEYS[CLAIM + role]) > 0 then
    local expires = natural(call('GET', KEYS[CLAIM_UNTIL + role]))
    if not expires or expires > now() + CLAIM_MS then
      -- The claim's owner cannot write this: it learns of its claim from the reply. A server that is out of memory
      -- refuses it; then the next step writes it.
      redis.pcall('SET', KEYS[CLAIM_UNTIL + role], now() + CLAIM_MS)
    elseif now() >= expires then
      abandoned = true
      if careful then respect_memory_limit() end
      call('DEL', KEYS[CLAIM + role], KEYS[CLAIM_UNTIL + role])
      release(role)
    end
  end
  return expired, items, abandoned, overlong
end

-- Look for unusual states, and heal the roles if there is one.
-- mine: the role of this step's own lease, which must not be healed; or nil.
-- Returns: 1 if the queue is closed, or 0; true if all is as usual: no claim, no pause, no producer's lease, nothing
--          healed; true if the consumer has a lease
local function survey(bound, careful, mine)
  local left, overlong = lasts(CONSUMER)
  local leased = left ~= nil
  local fine = leased and left > 0 and not overlong
      or not leased and call('EXISTS', KEYS[LEASE + CONSUMER], INFLIGHT, APART) == 0
  if call('EXISTS', CLOSED, PAUSED, KEYS[LEASE + PRODUCER], KEYS[CLAIM + PRODUCER], KEYS[CLAIM + CONSUMER]) == 0
      and fine then
    return 0, true, leased
  end
  if mine ~= PRODUCER then heal(PRODUCER, bound, careful) end
  if mine ~= CONSUMER then heal(CONSUMER, bound, careful) end
  return call('EXISTS', CLOSED), false, leased
end

-- Are consumers to take nothing? usual: what `survey` returned; in a usual state there is no pause.
local function is_paused(usual)
  return not usual and call('EXISTS', PAUSED) == 1
end

-- Move a token that this client has claimed to the free list. After the step, the first client in line gets it.
local function unclaim(role, claimed)
  if claimed == '1' and call('LLEN', KEYS[CLAIM + role]) > 0 then
    call('DEL', KEYS[CLAIM + role], KEYS[CLAIM_UNTIL + role])
    release(role)
  end
end

-- May this step work in the role? Returns: true | nil, the answer that says why not
-- A step without a lease does not move the token: no other client can run a command during a script.
-- unleased: the step knows from `survey` that the role has no lease. (In a usual state the producer has none.)
local function enter(role, claimed, token, unleased)
  local lease = unleased and {} or call('HMGET', KEYS[LEASE + role], 'token', 'uid')
  if lease[1] then
    if lease[1] == token then return true end
    if token ~= '' then return nil, {'lost'} end
    return nil, {'busy', name_of(role), lease[2] or '', math.max(0, lasts(role) or 0)}
  end
  if token ~= '' then return nil, {'lost'} end
  if call('LLEN', KEYS[FREE + role]) > 0 then return true end
  if claimed == '1' and call('LLEN', KEYS[CLAIM + role]) > 0 then return true end
  return nil, {'busy', name_of(role), call('GET', KEYS[HOLDER + role]) or '', -1}
end

-- Refuse a step: returns `wrong`. If the queue is gone, this also ends this client's lease, and heals what dead clients
-- left, so that the client that deletes the queue can finish.
local function refuse(wrong, role, claimed, token, bound)
  if bound then
    survey(bound, true)  -- even with a broken statistic, a dead client's role goes back
  elseif wrong[1] == 'missing' then
    if token ~= '' and call('HGET', KEYS[LEASE + role], 'token') == token then
      call('LLEN', KEYS[FREE + role])
      if role == CONSUMER then call('DEL', INFLIGHT, APART) end
      call('DEL', KEYS[LEASE + role])
      release(role)
    end
    survey(nil, false)
  end
  unclaim(role, claimed)
  return wrong
end

local function count(role, messages, bytes)
  call('INCRBY', KEYS[MESSAGES + 2 * role], messages)
  call('INCRBY', KEYS[BYTES + 2 * role], bytes)
end

-- Pop up to max messages, or about 1 MiB of them, in chunks whose size follows the size of the messages.
-- command, key: another end, and another list; nil for the next messages of the queue.
-- Returns: {{messages}...}, number of messages, their bytes
local function pop(max, command, key)
  key = key or LIST
  local chunks, messages, bytes = {}, 0, 0
  local chunk = 1
  while messages < max and bytes < 1048576 do
    local popped = call(command or 'RPOP', key, math.min(chunk, max - messages))
    if not popped or #popped == 0 then break end
    for i = 1, #popped do bytes = bytes + #popped[i] end
    messages = messages + #popped
    chunks[#chunks + 1] = popped
    local fit = bytes > 0 and math.floor((1048576 - bytes) * messages / bytes) or 200
    chunk = math.min(200, 4 * chunk, fit, max - messages)
    if chunk > 16 then
      -- Many large messages may stand behind small ones.
      local last, furthest = -chunk, 0
      if command == 'LPOP' then last, furthest = chunk - 1, -1 end
      last = call('LINDEX', key, last) or call('LINDEX', key, furthest) or ''
      chunk = math.min(chunk, math.floor((1048576 - bytes) / math.max(1, #last)))
    end
    chunk = math.max(1, chunk)
  end
  return chunks, messages, bytes
end

-- The messages of all chunks, in one list.
local function flat(chunks)
  if #chunks == 1 then return chunks[1] end
  local messages = {}
  for i = 1, #chunks do
    for j = 1, #chunks[i] do messages[#messages + 1] = chunks[i][j] end
  end
  return messages
end

-- The bytes of the deliveries from first to last, as far as they are in flight.
local function size_of(first, last, oldest, next_number)
  local bytes = 0
  for number = first, math.min(last, oldest - 1) do bytes = bytes + #(look_apart(number) or '') end
  first, last = math.max(first, oldest), math.min(last, next_number - 1)
  if first <= last then
    local messages = call('LRANGE', INFLIGHT, next_number - 1 - last, next_number - 1 - first)
    for i = 1, #messages do bytes = bytes + #messages[i] end
  end
  return bytes
end

-- Are the deliveries from first to last in flight, all of them?
local function all_in_flight(first, last, oldest, next_number)
  if last >= next_number then return false end
  for number = first, math.min(last, oldest - 1) do
    if call('HSTRLEN', APART, number) == 0 then return false end
  end
  return true
end

-- Acknowledge deliveries; statistics count them now. Returns: how many
-- values[from..to]: ranges, each its first number, its last one, and the bytes of its messages. A client repeats a
-- range unchanged, so all of it is in flight, or none. Only a server that has taken over may lack the end of a range.
local function acknowledge(values, from, to)
  local messages, bytes = 0, 0
  local oldest, next_number
  if from <= to then oldest, next_number = numbers() end
  for i = from, to, 3 do
    local first, last, gone = tonumber(values[i]), tonumber(values[i + 1]), 0
    local whole = last >= oldest and last < next_number or last < oldest and call('HSTRLEN', APART, last) > 0
    local size = whole and tonumber(values[i + 2]) or size_of(first, last, oldest, next_number)
    local apart = {}
    for number = first, math.min(last, oldest - 1) do apart[#apart + 1] = number end
    for j = 1, #apart, CHUNK do
      gone = gone + call('HDEL', APART, unpack(apart, j, math.min(j + CHUNK - 1, #apart)))
    end
    last = math.min(last, next_number - 1)
    if last >= math.max(oldest, first) then
      if first > oldest then
        set_apart(oldest, first)
        oldest = first
      end
      call('LTRIM', INFLIGHT, 0, oldest - last - 2)
      gone = gone + last + 1 - oldest
      oldest = last + 1
    end
    if gone > 0 then messages, bytes = messages + gone, bytes + size end
  end
  if messages > 0 then count(CONSUMER, messages, bytes) end
  return messages
end

-- Read an entry of REDELIVERED. Returns: how often the message was delivered, its digest | nil for any other text
local function redelivery(entry)
  local times, digest = string.match(entry, '^(%d+):(.*)$')
  times = natural(times)
  if times then return times, digest end
end

-- How often each of these messages, which were just popped, has been delivered, this time included.
-- The entries of REDELIVERED are in the order of the right end of the queue: how often, and the message's digest. Other
-- clients pop messages without their entries. So entries that were passed over are dropped, and also the oldest ones,
-- if there are more entries than messages.
local function attempts_of(messages)
  local attempts = {}
  for i = 1, #messages do attempts[i] = 1 end
  local total = call('LLEN', REDELIVERED)
  if total == 0 then return attempts end
  local entries = call('LRANGE', REDELIVERED, -(#messages + 100), -1)
  local places, times = {}, {}  -- digest -> the places of its entries, the rightmost last
  for j = 1, #entries do
    local digest
    times[j], digest = redelivery(entries[j])
    if digest then
      places[digest] = places[digest] or {}
      table.insert(places[digest], j)
    end
  end
  local last = #entries
  for i = 1, #messages do
    local found = places[digest_of(messages[i])]
    while found and #found > 0 and found[#found] > last do table.remove(found) end
    if found and #found > 0 then
      last = found[#found] - 1
      attempts[i] = times[last + 1] + 1
    end
  end
  local kept = math.min(total - #entries + last, call('LLEN', LIST))
  if kept == 0 then
    call('DEL', REDELIVERED)
  elseif kept < total then
    local right = total - #entries + last - 1
    call('LTRIM', REDELIVERED, right - kept + 1, right)
  end
  return attempts
end

-- Find entries that other programs wrote, among the first thousand of APART and of REDELIVERED.
-- Returns: the fields of APART that are no deliveries, the entries of REDELIVERED that are invalid, its valid entries
local function foreign()
  local fields, entries, proper = {}, {}, {}
  if call('TYPE', APART).ok == 'hash' then
    local all = call('HKEYS', APART)
    for i = 1, math.min(#all, CHUNK) do
      local _, _, odd = look_apart(all[i])
      if odd or not natural(all[i]) then fields[#fields + 1] = all[i] end
    end
  end
  if call('TYPE', REDELIVERED).ok == 'list' then
    for _, entry in ipairs(call('LRANGE', REDELIVERED, -CHUNK, -1)) do
      local to = redelivery(entry) and proper or entries
      to[#to + 1] = entry
    end
  end
  return fields, entries, proper
end

-- The state of a key, whatever its type: {type, size, the beginning of a string or the token of a lease}.
local function state_of(key)
  local kind = call('TYPE', key).ok
  if kind == 'string' then return {kind, call('STRLEN', key), call('GETRANGE', key, 0, 4095)} end
  if kind == 'list' then return {kind, call('LLEN', key), ''} end
  if kind == 'hash' then return {kind, call('HLEN', key), call('HGET', key, 'token') or ''} end
  return {kind, 0, ''}
end

-- A digest of the states of keys. If two digests are equal, nothing has changed in between.
local function mark(keys)
  local all = {}
  for i = 1, #keys do
    local seen = state_of(keys[i])
    all[i] = seen[1] .. ':' .. seen[2] .. ':' .. #seen[3] .. ':' .. seen[3]
  end
  return digest_of(table.concat(all, '|'))
end

local function mark_of(role)
  return mark({KEYS[HOLDER + role], KEYS[MESSAGES + 2 * role], KEYS[BYTES + 2 * role], KEYS[FREE + role],
               KEYS[LEASE + role], KEYS[CLAIM + role]})
end

-- Returns: why dead letters cannot be moved, or nil. Writes nothing.
-- first: where the keys of the dead-letter queue begin; behind them are those of which none may exist when it is made.
-- limit: how often a message is delivered at most.
local function obstacle(first, limit)
  switch_to(first)
  local fine, bound, wrong = pcall(check, PRODUCER)
  local why
  if not fine then
    why = 'a key of ' .. LIST .. ' is of the wrong type'
  elseif wrong and wrong[1] == 'corrupt' then
    why = wrong[2]
  elseif not bound then
    local other = collision(first + 23)
    if other then
      why = LIST .. ' would share a key with the queue ' .. string.sub(KEYS[other], 1, -7)
    elseif call('EXISTS', CLOSED) == 1 then
      why = LIST .. ' is being deleted, and they would be deleted with it'
    end
  end
  switch_to(1)
  if not why then return nil end
  for _, entry in ipairs(call('LRANGE', REDELIVERED, 0, -1)) do
    if (redelivery(entry) or 0) >= limit then return why end
  end
end

-- Has the next message been delivered before? Then it travels alone: a message that kills its consumer must not use up
-- the attempts of others.
local function suspect()
  local entry, message = call('LINDEX', REDELIVERED, -1), call('LINDEX', LIST, -1)
  return entry and message and string.match(entry, ':(.*)') == digest_of(message)
end

-- Why messages failed is in a hash beside the dead-letter queue, in these fields:
-- 'f' and a digest, for a message that came back: 'time:attempt:error', of the latest attempt that ended with an error.
-- 'd' and a digest, for dead letters: a line 'time:attempts:attempt:error' for each one with that content, the latest
-- one last; attempt is 0 where no error is known.
-- Nothing depends on it: other clients take dead letters away and leave the reasons, and it may be missing.
local MOST_REASONS, MOST_TWINS, REASONS_MS = 5000, 20, 2592000000

-- Can reasons be kept at a key? Another program may have written a value of another type.
local function holds_reasons(key)
  return key and type(redis.pcall('HLEN', key)) == 'number'
end

local function failure_field(message)
  return 'f' .. digest_of(LIST .. ' ' .. message)  -- several queues may share a dead-letter queue
end

local function letter_field(message)
  return 'd' .. digest_of(message)
end

-- The lines of a field for dead letters, the latest one last.
local function lines_of(key, field)
  local lines = {}
  for line in string.gmatch(call('HGET', key, field) or '', '[^\n]+') do lines[#lines + 1] = line end
  return lines
end

-- Write fields and values. Where there are too many, the oldest tenth goes.
local function write_reasons(key, values)
  if #values == 0 then return end
  push('HSET', key, values, 1, #values)
  call('PEXPIRE', key, REASONS_MS)
  if call('HLEN', key) <= MOST_REASONS then return end
  local fields, known, dropped = call('HKEYS', key), {}, {}
  for i = 1, #fields, CHUNK do
    local last = math.min(i + CHUNK - 1, #fields)
    local texts = call('HMGET', key, unpack(fields, i, last))
    for j = i, last do
      known[j] = {natural(string.match(texts[j - i + 1] or '', '^%d+')) or 0, fields[j]}
    end
  end
  table.sort(known, function(a, b) return a[1] < b[1] end)
  for i = 1, #known - MOST_REASONS * 0.9 do dropped[i] = known[i][2] end
  push('HDEL', key, dropped, 1, #dropped)
end

-- Note the errors of deliveries in flight: {number -> error}.
local function note_failures(errors, key)
  if not holds_reasons(key) then return end
  local values = {}
  local _, next_number = numbers()
  for number, text in pairs(errors) do
    local message, times = look_apart(number)
    if not message and number < next_number then
      message, times = call('LINDEX', INFLIGHT, next_number - 1 - number), 1
    end
    if message then
      values[#values + 1] = failure_field(message)
      values[#values + 1] = now() .. ':' .. times .. ':' .. text
    end
  end
  write_reasons(key, values)
end

-- Forget the errors of deliveries that are about to be acknowledged.
-- values[from..to]: ranges, as for `acknowledge`.
local function forget_failures(values, from, to, key)
  if not holds_reasons(key) then return end
  local fields = {}
  for i = from, to, 3 do
    for number = tonumber(values[i]), tonumber(values[i + 1]) do
      local message, times = look_apart(number)
      if message and times > 1 then fields[#fields + 1] = failure_field(message) end
    end
  end
  push('HDEL', key, fields, 1, #fields)
end

-- Read what a step gives back: ARGV[from...], each 'number' or 'number:error'.
-- leave: all that is in flight goes back in order, so only the errors matter.
-- Returns: the numbers to give back | {number -> error}, or nil if there are no errors
local function read_returned(from, leave)
  local returned, errors = {}, nil
  for i = from, #ARGV do
    local number, text = string.match(ARGV[i], '^(%d+):(.*)$')
    if number then
      errors = errors or {}
      errors[tonumber(number)] = text
    end
    if not (number and leave) then returned[#returned + 1] = tonumber(number or ARGV[i]) end
  end
  return returned, errors
end

-- Keep why messages of this queue become dead letters. attempts: how often each was delivered.
local function keep_reasons(key, dead, attempts)
  if not holds_reasons(key) then return end
  for i = 1, #dead do
    local failed, field = failure_field(dead[i]), letter_field(dead[i])
    local at, text = string.match(call('HGET', key, failed) or '', '^%d+:(%d+):(.*)$')
    at = natural(at)
    if not at or at > attempts[i] then at, text = 0, '' end  -- or it belongs to an earlier message with this content
    local lines = lines_of(key, field)
    local latest = natural(string.match(lines[#lines] or '', '^%d+')) or 0
    -- The time also tells dead letters with the same content apart.
    lines[#lines + 1] = math.max(now(), latest + 1) .. ':' .. attempts[i] .. ':' .. at .. ':' .. text
    local kept = table.concat(lines, '\n', math.max(1, #lines - MOST_TWINS + 1))
    call('HDEL', key, failed)
    write_reasons(key, {field, kept})
  end
end

-- Drop why a message was a dead letter: the line with this time, or nil for the oldest line.
local function drop_reason(key, message, time)
  local field, kept, dropped = letter_field(message), {}, false
  for _, line in ipairs(lines_of(key, field)) do
    if dropped or time and string.match(line, '^%d+') ~= time then
      kept[#kept + 1] = line
    else
      dropped = true
    end
  end
  if #kept > 0 and dropped then
    call('HSET', key, field, table.concat(kept, '\n'))
  elseif dropped then
    call('HDEL', key, field)
  end
end

-- attempts: how often each of the messages was delivered.
local function move_to_dead_letters(first, dead, attempts)
  keep_reasons(KEYS[first + 22], dead, attempts)
  local bytes = 0
  for i = 1, #dead do bytes = bytes + #dead[i] end
  count(CONSUMER, #dead, bytes)
  switch_to(first)
  if call('EXISTS', BOUND) == 0 then make(0) end
  push('LPUSH', LIST, dead, 1, #dead)
  count(PRODUCER, #dead, bytes)
  normalise(tonumber(call('GET', BOUND)))
  switch_to(1)
end

-- Take up to `most` messages from the queue. Those that were delivered often enough become dead letters.
-- again: some have been delivered before. first, limit: as above.
-- Returns: {{messages}...} | how many these are | {attempts} or {} (each the first) | how many left the queue |
--          how many became dead letters
local function take(most, again, first, limit)
  local MOST_DEAD = 50  -- in one step: each is checked by itself
  local chunks, messages, attempts, dead, died = {}, 0, {}, {}, {}
  local total, taken = 0, 0
  repeat
    local popped, count_of, bytes = pop((limit == 1 or limit > 0 and suspect()) and 1 or most)
    local all = again and count_of > 0 and flat(popped)
    if all then
      local tried, kept = attempts_of(all), {}
      for i = 1, #all do
        local to = limit > 0 and tried[i] > limit and dead or kept
        to[#to + 1] = all[i]
        if to == kept then attempts[#attempts + 1] = tried[i] else died[#died + 1] = tried[i] - 1 end
      end
      chunks, messages = {kept}, #kept
    else
      chunks, messages = popped, count_of  -- every one for the first time
    end
    total = total + bytes
    taken = taken + count_of
  until messages > 0 or count_of == 0 or #dead >= MOST_DEAD or total >= 1048576
  if #dead > 0 then move_to_dead_letters(first, dead, died) end
  return chunks, messages, attempts, taken, #dead
end

-- Clients of ours can share the consumer role. Its lease then has the token SHARED, and a record of each member. All
-- deliveries are APART; their numbers are given to the members in ranges. The lease's `deadline` is the latest one of
-- the members' deadlines, and no member's deadline is before `earliest`.

-- A member from its record: 'deadline:duration:since:sequence:first:count:ranges:uid' with the sequence number of its
-- latest receive, which brought `count` deliveries from the number `first` on, and all ranges that it has, ascending
-- ('3-7 12-12').
-- Returns: {deadline, duration, since, sequence, first, count, ranges, uid}; nil where the record cannot be read
local function member_of(text)
  local deadline, duration, since, sequence, first, size, list, uid =
      string.match(text or '', '^(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):([%d %-]*):(.*)$')
  local member = {deadline = natural(deadline), duration = natural(duration), since = natural(since),
                  sequence = natural(sequence), first = natural(first), count = natural(size), ranges = {}, uid = uid}
  local behind = -1
  for from, to in string.gmatch(list or '', '(%d+)%-(%d+)') do
    local range = {natural(from), natural(to)}
    if not (range[1] and range[2]) or range[1] <= behind or range[2] < range[1] then return nil end
    behind = range[2]
    member.ranges[#member.ranges + 1] = range
  end
  local times = member.deadline and member.duration and member.since
  return times and member.sequence and member.first and member.count and member or nil
end

local function write_member(token, member)
  local ranges = {}
  for i = 1, #member.ranges do ranges[i] = member.ranges[i][1] .. '-' .. member.ranges[i][2] end
  call('HSET', KEYS[LEASE + CONSUMER], MEMBER .. token, table.concat({
    member.deadline, member.duration, member.since, member.sequence, member.first, member.count,
    table.concat(ranges, ' '), member.uid}, ':'))
end

-- The answer to a client that is no member: any member that finds the queue deleted ends the lease of all.
local function no_member()
  return {call('EXISTS', BOUND) == 1 and 'lost' or 'missing'}
end

-- Renew the lease of a member, which the caller writes.
local function renew_member(member, milliseconds)
  member.deadline, member.duration = now() + milliseconds, tonumber(milliseconds)
  local lease = call('HMGET', KEYS[LEASE + CONSUMER], 'deadline', 'duration', 'earliest')
  local latest = math.max(natural(lease[1]) or 0, member.deadline)
  local earliest = math.min(natural(lease[3]) or 0, member.deadline)
  local longest = math.max(natural(lease[2]) or 0, member.duration)
  call('HSET', KEYS[LEASE + CONSUMER], 'deadline', latest, 'duration', longest, 'earliest', earliest)
end

-- Does a member have all of these deliveries? A server that took over may have given the numbers to another one.
local function owns(member, first, last)
  for i = 1, #member.ranges do
    if member.ranges[i][1] <= first and last <= member.ranges[i][2] then return true end
  end
  return false
end

-- Returns: those of the acknowledged ranges (first, last, bytes) in values[from..to] that a member has
local function owned_acks(member, values, from, to)
  local acks = {}
  for i = from, to, 3 do
    if owns(member, tonumber(values[i]), tonumber(values[i + 1])) then
      for j = i, i + 2 do acks[#acks + 1] = values[j] end
    end
  end
  return acks
end

-- The ranges whose first and last numbers are in values[from..to], `step` apart. Returns: them, ascending
local function ranges_in(values, from, to, step)
  local found = {}
  for i = from, to, step do found[#found + 1] = {tonumber(values[i]), tonumber(values[i + 1])} end
  table.sort(found, function(a, b) return a[1] < b[1] end)
  return found
end

-- Returns: the parts of ranges that others have too | those that others do not have. Both arguments are ascending.
local function split(ranges, others)
  local inside, outside, k = {}, {}, 1
  for i = 1, #ranges do
    local first, last = ranges[i][1], ranges[i][2]
    while first <= last do
      while others[k] and others[k][2] < first do k = k + 1 end
      local other = others[k]
      local within = other and other[1] <= first
      local to = not other and last or math.min(last, within and other[2] or other[1] - 1)
      local part = within and inside or outside
      part[#part + 1] = {first, to}
      first = to + 1
    end
  end
  return inside, outside
end

-- Returns: {token -> member, or false where its record cannot be read}
local function members()
  local fields, all = {}, {}
  for _, field in ipairs(call('HKEYS', KEYS[LEASE + CONSUMER])) do
    if string.sub(field, 1, #MEMBER) == MEMBER then fields[#fields + 1] = field end
  end
  for i = 1, #fields, CHUNK do
    local last = math.min(i + CHUNK - 1, #fields)
    local records = call('HMGET', KEYS[LEASE + CONSUMER], unpack(fields, i, last))
    for j = i, last do all[string.sub(fields[j], #MEMBER + 1)] = member_of(records[j - i + 1]) or false end
  end
  return all
end

-- How many members there are, as long as no other program writes fields of its own.
local function member_count()
  return math.max(1, call('HLEN', KEYS[LEASE + CONSUMER]) - 8)
end

-- What deliveries of these ranges are APART still, as sorted numbers.
-- others: members; what they have is left out; or nil.
local function numbers_in(ranges, others)
  local numbers, found, span = {}, {}, 0
  for i = 1, #ranges do span = span + ranges[i][2] - ranges[i][1] + 1 end
  if span > CHUNK + call('HLEN', APART) then  -- another program wrote that range
    for _, field in ipairs(call('HKEYS', APART)) do
      local number = natural(field)
      if number and owns({ranges = ranges}, number, number) then numbers[#numbers + 1] = number end
    end
  else
    for i = 1, #ranges do
      for number = ranges[i][1], ranges[i][2] do numbers[#numbers + 1] = number end
    end
  end
  for i = 1, #numbers, CHUNK do
    local last = math.min(i + CHUNK - 1, #numbers)
    local entries = call('HMGET', APART, unpack(numbers, i, last))
    for j = i, last do
      local free = entries[j - i + 1]
      for k = 1, free and others and #others or 0 do free = free and not owns(others[k], numbers[j], numbers[j]) end
      if free then found[#found + 1] = numbers[j] end
    end
  end
  table.sort(found)
  return found
end

-- Return the deliveries that none of these members has: another program wrote them, or the record of who has them.
-- Returns: how many
local function return_orphans(alive)
  local returned, orphans = call('LLEN', INFLIGHT), {}
  for _ = 1, returned do call('LMOVE', INFLIGHT, LIST, 'LEFT', 'RIGHT') end
  for _, field in ipairs(call('HKEYS', APART)) do
    local owned, number = false, natural(field)
    for i = 1, number and #alive or 0 do owned = owned or owns(alive[i], number, number) end
    if not owned then orphans[#orphans + 1] = field end
  end
  table.sort(orphans, function(a, b) return (natural(a) or 0) < (natural(b) or 0) end)
  return returned + put_back(orphans)
end

-- Wake so many clients that wait in line.
local function wake(most)
  local waiting = redis.pcall('LLEN', TURNS)
  if type(waiting) ~= 'number' then  -- another program wrote there
    call('DEL', TURNS)
    waiting = 0
  end
  for _ = waiting + 1, most do call('LPUSH', TURNS, 1) end
  if waiting < most then call('PEXPIRE', TURNS, 2 * WATCH_MS) end
end

-- Remove members whose lease has run out, and return what they have, first in line. Without members the lease ends.
-- gone: the uid, or the token, of members that have to go in any case, or nil.
-- Returns: how many were removed | how many deliveries were returned | the members that remain
local function heal_members(bound, gone)
  ignore_memory_limit()
  call('LLEN', REDELIVERED)  -- raises an error where it is of a wrong type
  local all = members()
  local ranges, dead, alive, latest, earliest, longest = {}, {}, {}, 0, nil, 0
  local readable = natural(call('HGET', KEYS[LEASE + CONSUMER], 'next'))  -- otherwise nobody can receive anything
  local complete = true  -- every record says what its member has
  for token, member in pairs(all) do
    local stays = readable and member and member.uid ~= gone and token ~= gone
    local left = stays and math.min(member.deadline - now(), member.duration) or 0
    if left > 0 and member.deadline - now() > left then  -- the server's clock was set back
      member.deadline = now() + left
      write_member(token, member)
    end
    if left > 0 then
      alive[#alive + 1] = member
      latest, earliest = math.max(latest, now() + left), math.min(earliest or now() + left, now() + left)
      longest = math.max(longest, member.duration)
    else
      dead[#dead + 1] = MEMBER .. token
      complete = complete and member
      for i = 1, member and #member.ranges or 0 do ranges[#ranges + 1] = member.ranges[i] end
    end
  end
  local returned
  if #alive == 0 then
    returned = return_everything()
    call('DEL', KEYS[LEASE + CONSUMER])
    release(CONSUMER)
  else
    returned = complete and put_back(numbers_in(ranges, alive)) or return_orphans(alive)
    push('HDEL', KEYS[LEASE + CONSUMER], dead, 1, #dead)
    call('HSET', KEYS[LEASE + CONSUMER], 'uid', alive[1].uid, 'deadline', latest, 'earliest', earliest,
         'duration', longest)
    call('SET', KEYS[HOLDER + CONSUMER], alive[1].uid)
  end
  normalise(bound)
  return #dead, returned, alive
end

-- The same, when it is time for it. For steps that have TURNS: clients that wait in line learn of what came back.
local function heal_members_in_time(bound)
  local lease = call('HMGET', KEYS[LEASE + CONSUMER], 'earliest', 'duration', 'next')
  local left = (natural(lease[1]) or 0) - now()
  if left > 0 and left <= (natural(lease[2]) or 0) and natural(lease[3]) then return end
  local removed, returned = heal_members(bound)
  if returned > 0 or removed > 0 then wake(math.max(1, member_count())) end
end

-- Wake all clients that wait for the end of a pause. The list stays until those that are about to wait have seen it; a
-- pause deletes it.
local function wake_paused(resumed)
  call('DEL', resumed)  -- another program may have written there
  call('LPUSH', resumed, 1)
  call('PEXPIRE', resumed, 2 * WATCH_MS)
end

-- Of the clients that wait for messages in a queue, one watches it; the others wait for a token in TURNS, in line.
-- So a put wakes one client. The client that watches passes that on when it has something to do, or no longer waits.
-- WATCH has its id, until when it certainly lives, and until when others certainly wait.

-- What WATCH says: {id, until, others}.
local function watch_state()
  local watch = redis.pcall('HMGET', WATCH, 'id', 'until', 'others')
  if watch.err then  -- another program wrote there
    call('DEL', WATCH)
    return {}
  end
  return watch
end

-- There is nothing to do: shall this client watch? Otherwise it waits in line.
-- Returns: nil if it shall | milliseconds after which the client that watches may turn out to be dead
local function watched_by_another(id)
  local watch = watch_state()
  local left = (natural(watch[2]) or 0) - now()
  local taken = watch[1] and watch[1] ~= id and left > 0 and left <= WATCH_MS
  if taken then
    call('HSET', WATCH, 'others', now() + WATCH_MS)
  else
    call('HSET', WATCH, 'id', id, 'until', now() + WATCH_MS)
  end
  call('PEXPIRE', WATCH, 2 * WATCH_MS)
  return taken and left or nil
end

-- This client has something to do, or no longer waits: if it watched, or if there is more to do, the next one wakes.
local function pass_on(id)
  local watch = watch_state()
  local mine = watch[1] == id
  if mine then call('HDEL', WATCH, 'id') end
  local left = (natural(watch[3]) or 0) - now()
  if left <= 0 or left > WATCH_MS then
    if mine then call('DEL', WATCH) end
    return
  end
  local watched = not mine and watch[1] and (natural(watch[2]) or 0) > now()
  if not watched or call('LLEN', LIST) > 0 then wake(1) end
end
