-- Move messages from the queue to what is in flight under this client's lease, acknowledging earlier ones on the way.
-- Statistics count a message when it is acknowledged. What has been delivered often enough becomes a dead letter: it
-- is moved to another queue, and counts as consumed here and produced there.
-- KEYS: those of the prelude; with a limit also those of the dead-letter queue, and from 45 on the keys of which none
--       may exist when it is made (each the :bound of a queue that it collides with)
-- ARGV: 1 uid, 2 lease token, 3 '1' if the role may be taken for this (a receive by hand), 4 '1' if it was claimed,
--       5 the most messages to receive, 6 milliseconds of the lease, 7 the sequence number to go on with,
--       8 limit of deliveries of a message or 0, 9 sequence, 10 '1' if this repeats a step,
--       11... sequence numbers to acknowledge
-- Returns: {'ok', {messages}, {attempts}, number of dead letters} (without messages: there may be more, try again) |
--          {'empty'} | {'closed'} | {'missing'} | {'corrupt', why} | {'lost'} | {'dead', why they cannot be moved} |
--          {'busy', role, holder, milliseconds of its lease or -1}
local uid, token, held, next_number, limit = ARGV[1], ARGV[2], ARGV[4], tonumber(ARGV[7]), tonumber(ARGV[8])
local MOST_DEAD = 50  -- in one step: each is looked at by itself

-- Why dead letters cannot be moved, or nil. Writes nothing, and asks only where there may be one.
local function obstacle()
  if limit == 0 or call('EXISTS', REDELIVERED) == 0 then return nil end
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
local bound, wrong = check(CONSUMER)
local mine = call('HGET', CONSUMER.lease, 'token') == token
if wrong then return refuse(wrong, CONSUMER, held, token, bound) end
local closed = call('EXISTS', CLOSED)
if mine then heal(PRODUCER, bound) else heal_all(bound) end
local entered, refusal = enter(CONSUMER, held, (mine or ARGV[3] ~= '1') and token or '')
if not entered then return refusal end
local why = obstacle()
if why then
  unclaim(CONSUMER, held)
  return {'dead', why}
end

ignore_memory_limit()
local time = now()
if not mine then
  unclaim(CONSUMER, held)
  call('SET', CONSUMER.holder, uid)
  if call('LLEN', LIST) == 0 then
    normalise(bound)
    return {closed == 1 and 'closed' or 'empty'}
  end
  call('DEL', CONSUMER.free)
  call('HSET', CONSUMER.lease, 'token', token, 'uid', uid, 'since', time, 'next', next_number)
end
call('HSET', CONSUMER.lease, 'deadline', time + ARGV[6])
acknowledge(ARGV, 11, #ARGV)

local messages, attempts, dead = {}, {}, {}
local number = tonumber(call('HGET', CONSUMER.lease, 'next'))
-- A server has taken over that had not heard of the latest deliveries: numbers go on where the client is, or its
-- acknowledgements would be of other messages than it means.
if number < next_number then number = next_number end
if number > next_number then
  -- The reply to this very step was lost: answer again with what it had received.
  for i = next_number, number - 1 do
    local payload = call('HGET', INFLIGHT, i)
    if payload then
      messages[#messages + 1] = payload
      attempts[#attempts + 1] = tonumber(call('HGET', ATTEMPTS, i) or 1)
    end
  end
else
  local most, total = tonumber(ARGV[5]), 0
  repeat
    local popped, bytes = pop((limit == 1 or limit > 0 and suspect()) and 1 or most)
    local tried = attempts_of(popped)
    for i = 1, #popped do
      local to = limit > 0 and tried[i] > limit and dead or messages
      to[#to + 1] = popped[i]
      if to == messages then attempts[#attempts + 1] = tried[i] end
    end
    total = total + bytes
  until #messages > 0 or #popped == 0 or #dead >= MOST_DEAD or total >= 1048576
  if #dead > 0 then lay_aside(dead) end
  for i = 1, #messages do
    call('HSET', INFLIGHT, number, messages[i])
    if attempts[i] > 1 then call('HSET', ATTEMPTS, number, attempts[i]) end
    number = number + 1
  end
  call('HSET', CONSUMER.lease, 'next', number)
  normalise(bound)
end
if #messages == 0 then
  if call('HGET', CONSUMER.lease, 'hold') ~= '1' and call('EXISTS', INFLIGHT) == 0 then
    call('DEL', CONSUMER.lease)
    release(CONSUMER)
  end
  if #dead == 0 then return {closed == 1 and 'closed' or 'empty'} end
end
return {'ok', messages, attempts, #dead}
