-- Shared by every step of a queue: names for the keys, and the few moves that all steps are made of.
-- A script gets those functions of this file that it uses. Every one receives the same KEYS, so that a key has one name
-- in all of them (those of a second queue follow):
-- KEYS: 1 the messages, 2 :bound, 3 :producer, 4 :consumer, 5 :producer_free, 6 :consumer_free,
--       7-10 :stats:{produced_messages,produced_bytes,consumed_messages,consumed_bytes}, 11 :not_full, 12 :closed,
--       and ours: 13 producer_lease, 14 consumer_lease, 15 producer_claim, 16 consumer_claim,
--       17 producer_claim_until, 18 consumer_claim_until, 19 inflight, 20 apart, 21 redelivered, 22 op
-- Scripts never roll back: everything is read and checked before the first write.
local call = redis.call
local FIRST = 1
local LIST, BOUND, NOT_FULL, CLOSED = KEYS[1], KEYS[2], KEYS[11], KEYS[12]
-- Deliveries have numbers that go up. The latest ones are INFLIGHT, the newest leftmost, each of them delivered for the
-- first time. Those that later ones have overtaken, or that had come back before, are APART: number -> 'times:message'.
local INFLIGHT, APART, REDELIVERED, OP = KEYS[19], KEYS[20], KEYS[21], KEYS[22]
-- A role is a number, which added to one of these gives the key: KEYS[LEASE + CONSUMER]; of the statistics twice.
local PRODUCER, CONSUMER = 0, 1
local HOLDER, FREE, MESSAGES, BYTES, LEASE, CLAIM, CLAIM_UNTIL = 3, 5, 7, 8, 13, 15, 17

-- Turn to the queue whose 22 keys begin at KEYS[first]: all names and moves are about that one from now on.
local function turn_to(first)
  local i = first - 1
  FIRST = first
  LIST, BOUND, NOT_FULL, CLOSED = KEYS[i + 1], KEYS[i + 2], KEYS[i + 11], KEYS[i + 12]
  INFLIGHT, APART, REDELIVERED, OP = KEYS[i + 19], KEYS[i + 20], KEYS[i + 21], KEYS[i + 22]
  HOLDER, FREE, MESSAGES, BYTES, LEASE, CLAIM, CLAIM_UNTIL = i + 3, i + 5, i + 7, i + 8, i + 13, i + 15, i + 17
end

local function name_of(role)
  return role == PRODUCER and 'producer' or 'consumer'
end

local CLAIM_MS = 5000          -- a claim that nobody uses for this long belongs to a dead client
local RECORD_MS = 300000       -- how long the result of a step is kept for a repeat of it
local CHUNK = 1000             -- arguments of one command; Lua's stack holds fewer than 8000

local clock
local function now()
  if not clock then
    local time = call('TIME')
    clock = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
  end
  return clock
end

-- The number at key, or nil and an answer that says what is wrong. A missing counter counts as 0.
local function integer(key, default)
  local text = call('GET', key) or default
  if not text then return nil, {'missing'} end
  if #text > 18 or not (text == '0' or string.match(text, '^%-?[1-9]%d*$')) then
    return nil, {'corrupt', key .. ' is not an integer that a queue can use'}
  end
  return tonumber(text)
end

-- What a step has to know before it writes: the bound, that the lists are lists (LLEN raises an error where they are
-- not), and that the role's statistics can be counted.
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

-- The result of this very step, where it has been carried out already and its reply was lost. A step may also be late
-- itself, on a connection that its client has given up: its repeat, or a later step, has been here before it. So a
-- repeat leaves word that it was here, whatever becomes of it (unless there is no memory left).
local function recall(sequence, repeated)
  local last, result = string.match(call('GET', OP) or '', '^(%d+):(%d+)$')
  local undone = last == sequence and result == '0' and repeated == '1'
  if not last or undone or tonumber(last) < tonumber(sequence) then
    if repeated == '1' then redis.pcall('SET', OP, sequence .. ':0', 'PX', RECORD_MS) end
    return nil
  end
  -- A write: a WAIT that follows on this new connection has to have something to wait for.
  call('PEXPIRE', OP, RECORD_MS)
  return last == sequence and tonumber(result) or 0
end

-- For steps that keep no record, since their repeat sees what they did: does this one come after its own repeat?
local function too_late(sequence, repeated)
  return recall(sequence, repeated) and repeated ~= '1'
end

-- The first write decides whether Redis checks maxmemory for the rest of a script. A consumer makes room and
-- must get through on a full server: this write, which changes nothing, switches the check off.
local function ignore_memory_limit()
  call('HDEL', KEYS[LEASE + CONSUMER], '')
end

-- The opposite, before a step that may push: a server that is out of memory refuses here. The record stays: a step that
-- is late may need it.
local function respect_memory_limit()
  call('SET', OP, call('GET', OP) or ':', 'PX', RECORD_MS)
end

-- The first of the keys from KEYS[first] on that exists: each is the :bound of a queue that this one collides with.
local function collision(first)
  for i = first, #KEYS do
    if call('EXISTS', KEYS[i]) == 1 then return i end
  end
end

-- Make the queue, clearing what an earlier life of the name has left behind.
local function make(bound)
  call('SET', BOUND, bound)
  for i = FIRST, FIRST + 20 do
    if KEYS[i] ~= BOUND then call('DEL', KEYS[i]) end
  end
  call('LPUSH', KEYS[FREE + PRODUCER], 1)
  call('LPUSH', KEYS[FREE + CONSUMER], 1)
  call('LPUSH', NOT_FULL, 1)
end

local function release(role)
  if call('LPUSH', KEYS[FREE + role], 1) > 1 then call('LTRIM', KEYS[FREE + role], 0, 0) end
end

-- :not_full holds exactly one token while there is room, and none otherwise.
-- length, permits: how long the two lists are, where the step knows.
local function normalise(bound, length, permits)
  permits = permits or call('LLEN', NOT_FULL)
  if bound == 0 or (length or call('LLEN', LIST)) < bound then
    if permits == 0 then call('LPUSH', NOT_FULL, 1) elseif permits > 1 then call('LTRIM', NOT_FULL, 0, 0) end
  elseif permits > 0 then
    call('DEL', NOT_FULL)
  end
end

-- fakeredis has no digests: a message stands for itself there.
local digest_of = redis.sha1hex or function(message) return message end

-- Returns: what the last of the commands answered
local function push(command, key, values, first, last)
  local answer
  for i = first, last, CHUNK do
    answer = call(command, key, unpack(values, i, math.min(i + CHUNK - 1, last)))
  end
  return answer
end

-- Returns: number of the oldest delivery in INFLIGHT | the number that comes behind its newest one
local function numbers()
  local next_number = tonumber(call('HGET', KEYS[LEASE + CONSUMER], 'next') or 1e15)  -- nobody's: behind all others
  return next_number - call('LLEN', INFLIGHT), next_number
end

-- How many messages are in flight.
local function in_flight()
  return call('LLEN', INFLIGHT) + call('HLEN', APART)
end

-- Move what is before a number from INFLIGHT to APART.
-- oldest: the number of the oldest there.
local function set_apart(oldest, number)
  local messages = number > oldest and call('LRANGE', INFLIGHT, oldest - number, -1) or {}
  local fields = {}
  for i = #messages, 1, -1 do
    fields[#fields + 1], fields[#fields + 2] = number - i, '1:' .. messages[i]
  end
  push('HSET', APART, fields, 1, #fields)
  if #messages > 0 then call('LTRIM', INFLIGHT, 0, -#messages - 1) end
end

-- Returns: the message of a delivery that is APART | how often it has been delivered; or nil
local function look_apart(number)
  local entry = call('HGET', APART, number)
  if not entry then return nil end
  local colon = string.find(entry, ':', 1, true)
  return string.sub(entry, colon + 1), tonumber(string.sub(entry, 1, colon - 1))
end

-- Put deliveries that are APART back on the right end, the oldest rightmost, and remember how often each was tried.
-- sequences: their numbers, ascending.
-- untouched: from this number on they were never handed out: that was no try.
local function put_back(sequences, untouched)
  local payloads, tried = {}, {}
  for i = #sequences, 1, -1 do
    local payload, attempts = look_apart(sequences[i])
    if payload then
      if untouched and tonumber(sequences[i]) >= untouched then attempts = attempts - 1 end
      payloads[#payloads + 1] = payload
      if attempts > 0 then tried[#tried + 1] = attempts .. ':' .. digest_of(payload) end
    end
  end
  call('HDEL', APART, '')  -- where a user lacks the right: before what would come again and again without it
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

-- The same for all that is in flight. Whoever heals a queue has the right to move messages, which a producer does not
-- have to read them.
local function return_everything(untouched)
  local oldest, next_number = numbers()
  local tried = {}
  for number = next_number - 1, oldest, -1 do
    local payload = call('LMOVE', INFLIGHT, LIST, 'LEFT', 'RIGHT')
    if not untouched or number < untouched then tried[#tried + 1] = '1:' .. digest_of(payload) end
  end
  push('RPUSH', REDELIVERED, tried, 1, #tried)
  local sequences = call('HKEYS', APART)
  table.sort(sequences, function(a, b) return tonumber(a) < tonumber(b) end)
  return next_number - oldest + put_back(sequences, untouched)
end

-- Heal a role: an expired lease or an abandoned claim gives the token back, and what is in flight with nobody
-- responsible for it returns to the queue.
-- bound: the queue's bound; nil where the queue is gone: then what is in flight goes, too.
-- careful: the step pushes; it may not use healing to get past the memory limit.
local function heal(role, bound, careful)
  local deadline = call('HGET', KEYS[LEASE + role], 'deadline')
  local expired = deadline and now() >= tonumber(deadline)
  local orphaned = role == CONSUMER and (expired or not deadline) and call('EXISTS', INFLIGHT, APART) > 0
  if expired or orphaned then
    if careful then respect_memory_limit() else ignore_memory_limit() end
  end
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
    local expires = call('GET', KEYS[CLAIM_UNTIL + role])
    if not expires then
      -- The claim's owner cannot write this itself: it learns of its claim only from the reply. A server that
      -- is out of memory refuses the note; the next step writes it.
      redis.pcall('SET', KEYS[CLAIM_UNTIL + role], now() + CLAIM_MS)
    elseif now() >= tonumber(expires) then
      if careful then respect_memory_limit() end
      call('DEL', KEYS[CLAIM + role], KEYS[CLAIM_UNTIL + role])
      release(role)
    end
  end
end

-- Look at what is rarely there, and heal the roles where they need it.
-- mine: a role whose lease is this step's own, and not to be healed; or nil.
-- Returns: 1 if the queue is closed, or 0 | true if all is as usual: no claim and no producer's lease, and nothing was
--          healed | the consumer's lease has a deadline
local function survey(bound, careful, mine)
  local leased = call('HGET', KEYS[LEASE + CONSUMER], 'deadline')
  local fine = leased and now() < tonumber(leased) or not leased and call('EXISTS', INFLIGHT, APART) == 0
  if call('EXISTS', CLOSED, KEYS[LEASE + PRODUCER], KEYS[CLAIM + PRODUCER], KEYS[CLAIM + CONSUMER]) == 0 and fine then
    return 0, true, leased
  end
  if mine ~= PRODUCER then heal(PRODUCER, bound, careful) end
  if mine ~= CONSUMER then heal(CONSUMER, bound, careful) end
  return call('EXISTS', CLOSED), false, leased
end

-- A token that this client has claimed goes to the free list, where whoever is first in line gets it after the step.
local function unclaim(role, held)
  if held == '1' and call('LLEN', KEYS[CLAIM + role]) > 0 then
    call('DEL', KEYS[CLAIM + role], KEYS[CLAIM_UNTIL + role])
    release(role)
  end
end

-- May this step work in the role? True, or nil and the answer to give.
-- A step that holds no lease leaves the token where it is: nobody can come in between.
-- unleased: the step knows from `survey` that the role has no lease. (What is usual there has no producer's.)
local function enter(role, held, token, unleased)
  local lease = unleased and {} or call('HMGET', KEYS[LEASE + role], 'token', 'uid', 'deadline')
  if lease[1] then
    if lease[1] == token then return true end
    if token ~= '' then return nil, {'lost'} end
    return nil, {'busy', name_of(role), lease[2], math.max(0, tonumber(lease[3] or 0) - now())}
  end
  if token ~= '' then return nil, {'lost'} end
  if call('LLEN', KEYS[FREE + role]) > 0 or (held == '1' and call('LLEN', KEYS[CLAIM + role]) > 0) then return true end
  return nil, {'busy', name_of(role), call('GET', KEYS[HOLDER + role]) or '', -1}
end

-- A step cannot be done. Where the queue is gone, a lease that this client still has ends, and what dead clients
-- left is healed, so that whoever deletes the queue can finish.
local function refuse(wrong, role, held, token, bound)
  if bound then
    survey(bound, true)  -- a statistic that cannot be counted must not keep a dead client's role
  elseif wrong[1] == 'missing' then
    if token ~= '' and call('HGET', KEYS[LEASE + role], 'token') == token then
      if role == CONSUMER then call('DEL', INFLIGHT, APART) end
      call('DEL', KEYS[LEASE + role])
      release(role)
    end
    survey(nil, false)
  end
  unclaim(role, held)
  return wrong
end

local function count(role, messages, bytes)
  call('INCRBY', KEYS[MESSAGES + 2 * role], messages)
  call('INCRBY', KEYS[BYTES + 2 * role], bytes)
end

-- Pop up to max messages, in portions so that large ones do not pile up in one reply.
-- command, key: another end, and another list.
-- Returns: {{messages}...} | number of messages | their bytes
local function pop(max, command, key)
  key = key or LIST
  local portions, messages, bytes = {}, 0, 0
  local portion = 1
  while messages < max and bytes < 1048576 do
    local popped = call(command or 'RPOP', key, math.min(portion, max - messages))
    if not popped or #popped == 0 then break end
    for i = 1, #popped do bytes = bytes + #popped[i] end
    messages = messages + #popped
    portions[#portions + 1] = popped
    local fit = bytes > 0 and math.floor((1048576 - bytes) * messages / bytes) or 200
    portion = math.min(200, 4 * portion, fit, max - messages)
    if portion > 16 then
      -- Many large messages may stand behind small ones.
      local last, furthest = -portion, 0
      if command == 'LPOP' then last, furthest = portion - 1, -1 end
      last = call('LINDEX', key, last) or call('LINDEX', key, furthest) or ''
      portion = math.min(portion, math.floor((1048576 - bytes) / math.max(1, #last)))
    end
    portion = math.max(1, portion)
  end
  return portions, messages, bytes
end

-- All that is in lists of messages, in one list.
local function flat(portions)
  if #portions == 1 then return portions[1] end
  local messages = {}
  for i = 1, #portions do
    for j = 1, #portions[i] do messages[#messages + 1] = portions[i][j] end
  end
  return messages
end

-- The bytes of those of the deliveries from first to last that are in flight.
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

-- Acknowledge deliveries; the statistics count them now.
-- values[from..to]: ranges, each its first number, its last one, and how many bytes its messages have. A range that is
-- sent again is the same range: all of it is in flight, or it has been acknowledged. Only a server that has taken over
-- may lack the end of one.
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

-- How often each of these messages, just popped, has been delivered, this time included.
-- `redelivered` runs beside the right end of the queue: an entry says how often, and which message (by its digest).
-- A client that knows nothing of it may have popped some: entries that were passed over are dropped, and so are those
-- that cannot belong to anything, since there are more of them than messages.
local function attempts_of(messages)
  local attempts = {}
  for i = 1, #messages do attempts[i] = 1 end
  local total = call('LLEN', REDELIVERED)
  if total == 0 then return attempts end
  local entries = call('LRANGE', REDELIVERED, -(#messages + 100), -1)
  local places = {}  -- digest -> the places of its entries, the rightmost last
  for j = 1, #entries do
    local digest = string.sub(entries[j], string.find(entries[j], ':', 1, true) + 1)
    places[digest] = places[digest] or {}
    table.insert(places[digest], j)
  end
  local last = #entries
  for i = 1, #messages do
    local found = places[digest_of(messages[i])]
    while found and #found > 0 and found[#found] > last do table.remove(found) end
    if found and #found > 0 then
      last = found[#found] - 1
      attempts[i] = tonumber(string.match(entries[last + 1], '^%d+')) + 1
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

-- What is at a key, whatever its type: {type, size, the beginning of a string or the token of a lease}.
local function look(key)
  local kind = call('TYPE', key).ok
  if kind == 'string' then return {kind, call('STRLEN', key), call('GETRANGE', key, 0, 4095)} end
  if kind == 'list' then return {kind, call('LLEN', key), ''} end
  if kind == 'hash' then return {kind, call('HLEN', key), call('HGET', key, 'token') or ''} end
  return {kind, 0, ''}
end

-- A digest of what is at the keys: where two are equal, nothing has moved in between.
local function mark(keys)
  local all = {}
  for i = 1, #keys do
    local seen = look(keys[i])
    all[i] = seen[1] .. ':' .. seen[2] .. ':' .. #seen[3] .. ':' .. seen[3]
  end
  return digest_of(table.concat(all, '|'))
end

local function mark_of(role)
  return mark({KEYS[HOLDER + role], KEYS[MESSAGES + 2 * role], KEYS[BYTES + 2 * role], KEYS[FREE + role],
               KEYS[LEASE + role], KEYS[CLAIM + role]})
end
