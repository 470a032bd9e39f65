-- Move messages from the queue to what is in flight under this client's lease, acknowledging earlier ones on the way.
-- Statistics count a message when it is acknowledged. What has been delivered often enough becomes a dead letter: it
-- is moved to another queue, and counts as consumed here and produced there.
-- KEYS: those of the prelude; with a limit also those of the dead-letter queue, and from 45 on the keys of which none
--       may exist when it is made (each the :bound of a queue that it collides with)
-- ARGV: 1 uid, 2 lease token, 3 '1' if the role may be taken for this (a receive by hand), 4 '1' if it was claimed,
--       5 the most messages to receive, 6 milliseconds of the lease, 7 the sequence number to go on with,
--       8 limit of deliveries of a message or 0, 9 sequence, 10 '1' if this repeats a step,
--       11... acknowledged ranges (first, last, bytes)
-- Returns: {'ok', {{messages}...}, {attempts} or {} (each the first), number of dead letters} (without messages: there
--          may be more, try again) | {'empty'} | {'closed'} | {'missing'} | {'corrupt', why} | {'lost'} |
--          {'dead', why they cannot be moved} | {'busy', role, holder, milliseconds of its lease or -1}
local uid, token, held, next_number, limit = ARGV[1], ARGV[2], ARGV[4], tonumber(ARGV[7]), tonumber(ARGV[8])
local MOST_DEAD = 50  -- in one step: each is looked at by itself

-- Why dead letters cannot be moved, or nil. Writes nothing.
local function obstacle()
  turn_to(23)
  local fine, bound, wrong = pcall(check, PRODUCER)
  local why
  if not fine then
    why = 'a key of ' .. LIST .. ' is of the wrong type'
  elseif wrong and wrong[1] == 'corrupt' then
    why = wrong[2]
  elseif not bound then
    local other = collision(45)
    if other then
      why = LIST .. ' would share a key with the queue ' .. string.sub(KEYS[other], 1, -7)
    elseif call('EXISTS', CLOSED) == 1 then
      why = LIST .. ' is being deleted by somebody, who would delete them too'
    end
  end
  turn_to(1)
  if not why then return nil end
  for _, entry in ipairs(call('LRANGE', REDELIVERED, 0, -1)) do
    if tonumber(string.match(entry, '^%d+')) >= limit then return why end
  end
end

-- Will the next message be delivered again? Then it travels alone: a message that kills whoever gets it must not
-- use up the deliveries of those that were received together with it.
local function suspect()
  local entry, message = call('LINDEX', REDELIVERED, -1), call('LINDEX', LIST, -1)
  return entry and message and string.match(entry, ':(.*)') == digest_of(message)
end

local function lay_aside(dead)
  local bytes = 0
  for i = 1, #dead do bytes = bytes + #dead[i] end
  count(CONSUMER, #dead, bytes)
  turn_to(23)
  if call('EXISTS', BOUND) == 0 then make(0) end
  push('LPUSH', LIST, dead, 1, #dead)
  count(PRODUCER, #dead, bytes)
  normalise(tonumber(call('GET', BOUND)))
  turn_to(1)
end

-- Taking the role once more when all has been settled, it would have messages in flight that nobody knows of.
if ARGV[3] == '1' and too_late(ARGV[9], ARGV[10]) then return {'lost'} end
local bound, wrong, length, permits = check(CONSUMER)
local lease = call('HMGET', KEYS[LEASE + CONSUMER], 'token', 'next', 'hold')
local mine = lease[1] == token
if wrong then return refuse(wrong, CONSUMER, held, token, bound) end
local closed, usual = survey(bound, false, mine and CONSUMER or nil)
if not mine then
  local entered, refusal = enter(CONSUMER, held, ARGV[3] ~= '1' and token or '')
  if not entered then return refusal end
end
local again = call('LLEN', REDELIVERED) > 0  -- some have been delivered before
local why = limit > 0 and again and obstacle()
if why then
  unclaim(CONSUMER, held)
  return {'dead', why}
end

in_flight()  -- raises an error where those keys are of a wrong type: before a message is taken
ignore_memory_limit()
local next_there, hold = tonumber(lease[2]), lease[3] == '1'
if not mine then
  unclaim(CONSUMER, held)
  call('SET', KEYS[HOLDER + CONSUMER], uid)
  if call('LLEN', LIST) == 0 then
    normalise(bound)
    return {closed == 1 and 'closed' or 'empty'}
  end
  call('DEL', KEYS[FREE + CONSUMER])
  next_there, hold = next_number, false
  -- With its deadline from the first: where a step fails half-way (a right that the user lacks), what it did stays.
  call('HSET', KEYS[LEASE + CONSUMER], 'token', token, 'uid', uid, 'since', now(), 'deadline', now() + ARGV[6],
       'next', next_there)
end
acknowledge(ARGV, 11, #ARGV)

local portions, messages, attempts, dead = {}, 0, {}, {}
-- A server has taken over that had not heard of the latest deliveries: numbers go on where the client is, or its
-- acknowledgements would be of other messages than it means.
local number = math.max(next_there, next_number)
if number > next_number then
  -- The reply to this very step was lost: answer again with what it had received.
  portions[1] = {}
  set_apart(numbers())
  for i = next_number, number - 1 do
    local payload, times = look_apart(i)
    if payload then
      messages = messages + 1
      portions[1][messages], attempts[messages] = payload, times
    end
  end
else
  local most, total, taken = tonumber(ARGV[5]), 0, 0
  repeat
    local popped, count_of, bytes = pop((limit == 1 or limit > 0 and suspect()) and 1 or most)
    local all = again and count_of > 0 and flat(popped)
    if all then
      local tried, kept = attempts_of(all), {}
      for i = 1, #all do
        local to = limit > 0 and tried[i] > limit and dead or kept
        to[#to + 1] = all[i]
        if to == kept then attempts[#attempts + 1] = tried[i] end
      end
      portions, messages = {kept}, #kept
    else
      portions, messages = popped, count_of  -- every one for the first time
    end
    total = total + bytes
    taken = taken + count_of
  until messages > 0 or count_of == 0 or #dead >= MOST_DEAD or total >= 1048576
  if #dead > 0 then lay_aside(dead) end
  if #attempts > 0 or number > next_there then set_apart(numbers()) end
  local fields = {}
  for i = 1, #attempts do
    fields[2 * i - 1], fields[2 * i] = number + i - 1, attempts[i] .. ':' .. portions[1][i]
  end
  push('HSET', APART, fields, 1, #fields)
  for i = 1, #attempts > 0 and 0 or #portions do push('LPUSH', INFLIGHT, portions[i], 1, #portions[i]) end
  number = number + messages
  normalise(bound, usual and length - taken or nil, usual and permits or nil)
end
if messages == 0 and not hold and call('EXISTS', INFLIGHT, APART) == 0 then
  call('DEL', KEYS[LEASE + CONSUMER])
  release(CONSUMER)
else
  call('HSET', KEYS[LEASE + CONSUMER], 'deadline', now() + ARGV[6], 'next', number)
end
if messages == 0 and #dead == 0 then return {closed == 1 and 'closed' or 'empty'} end
return {'ok', portions, attempts, #dead}
