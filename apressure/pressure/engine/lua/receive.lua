-- Receive messages: they are in flight under this client's lease. Acknowledge earlier ones in the same step.
-- Statistics count a message when it is acknowledged. A message that has reached the limit of deliveries becomes a dead
-- letter: it moves to another queue, and counts as consumed here and as produced there.
-- KEYS: those of the prelude; with a limit also those of the dead-letter queue, with 54 its reasons, and from 55 on the
--       keys of which none may exist when that is created (each the :bound of a queue that it collides with)
-- ARGV: 1 uid, 2 lease token, 3 '1' if the role may be taken for this (a receive by hand), 4 '1' if it was claimed,
--       5 the most messages to receive, 6 milliseconds of the lease, 7 the sequence number to go on with,
--       8 limit of deliveries of a message or 0, 9 sequence, 10 '1' if this repeats a step, or '2' if it stands behind
--       a wait: then it is refused where the lease has expired, or another receive came before it,
--       11... acknowledged ranges (first, last, bytes)
-- Returns: {'ok', {{messages}...}, {attempts} or {} (each the first), dead letters as `take` returns them} (without
--          messages: there may be more, try again) | {'empty', -1, due} |
--          {'draining', -1, due} (closed and empty, but some are delayed) | {'limited', -1, due} (as in get.lua) |
--          {'paused'} | {'closed'} | {'missing'} |
--          {'corrupt', why} | {'lost'} |
--          {'dead', why they cannot be moved} | {'busy', role, holder, milliseconds of its lease or -1};
--          with the milliseconds after which a delayed message is due, or -1
local uid, token, claimed, next_number, limit = ARGV[1], ARGV[2], ARGV[4], tonumber(ARGV[7]), tonumber(ARGV[8])

-- After its repeat, this step would take the role again, and have messages in flight that no client knows of.
if ARGV[3] == '1' and too_late(ARGV[9], ARGV[10]) then return {'lost'} end
local bound, wrong, length, permits = check(CONSUMER)
local lease = call('HMGET', KEYS[LEASE + CONSUMER], 'token', 'next', 'hold', 'step')
local mine, next_there, hold = lease[1] == token, natural(lease[2]), lease[3] == '1'
local behind = ARGV[10] == '2'
if behind then
  local latest = natural(lease[4]) == ARGV[9] - 1 and next_there == next_number
  if not (mine and latest) or (lasts(CONSUMER) or 0) <= 0 then return {'lost'} end
end
if wrong then return refuse(wrong, CONSUMER, claimed, token, bound) end
local flying = in_flight()  -- raises an error where those keys are of a wrong type: before a message is taken
if mine and (not next_there or next_there - next_number > flying) then
  -- Another program overwrote the number: it no longer identifies a message.
  unclaim(CONSUMER, claimed)
  return {'lost'}
end
local closed, usual = survey(bound, false, mine and CONSUMER or nil)
wrong = not usual and damaged_limits()
if wrong then return refuse(wrong, CONSUMER, claimed, mine and token or '', bound) end
local paused = not usual and is_paused()
if paused and not mine and ARGV[3] == '1' then
  unclaim(CONSUMER, claimed)
  return {'paused'}
end
if not mine then
  local entered, refusal = enter(CONSUMER, claimed, ARGV[3] ~= '1' and token or '')
  if not entered then return refusal end
end
if mine then
  ignore_memory_limit()
  call('HSET', KEYS[LEASE + CONSUMER], 'step', ARGV[9])  -- whatever becomes of it, steps behind waits take nothing now
end
local again = call('LLEN', REDELIVERED) > 0  -- some have been delivered before
local why = limit > 0 and again and not paused and obstacle(28, limit)
if why then
  unclaim(CONSUMER, claimed)
  return {'dead', why}
end

ignore_memory_limit()
local function nothing()
  if closed == 0 then return {'empty', -1, wait_for_due(usual)} end
  if delayed() > 0 then return {'draining', -1, wait_for_due()} end
  return {'closed'}
end
if not mine then
  unclaim(CONSUMER, claimed)
  call('SET', KEYS[HOLDER + CONSUMER], uid)
  if call('LLEN', LIST) == 0 then
    normalise(bound)
    return nothing()
  end
  next_there, hold = next_number, false
  -- With a deadline at once: if this step fails below (the user lacks a right), the lease stays, and must expire.
  call('HSET', KEYS[LEASE + CONSUMER], 'token', token, 'uid', uid, 'since', now(), 'deadline', now() + ARGV[6],
       'duration', ARGV[6], 'next', next_there, 'step', ARGV[9])
  call('DEL', KEYS[FREE + CONSUMER])
end
acknowledge(ARGV, 11, #ARGV)
local allowed = not usual and allowance(in_flight())

local chunks, messages, attempts, dead = {}, 0, {}, 0
-- A replica that took over may not have received the latest deliveries. Then numbers go on where the client is, or its
-- acknowledgements would settle other messages.
local number = math.max(next_there, next_number)
if number > next_number then
  -- The reply to this step was lost: answer with the same messages again.
  chunks[1] = {}
  set_apart(numbers())
  for i = next_number, number - 1 do
    local payload, times = look_apart(i)
    if payload then
      messages = messages + 1
      chunks[1][messages], attempts[messages] = payload, times
    end
  end
else
  local taken = 0
  if not paused then
    local most = math.min(tonumber(ARGV[5]), allowed and allowed.most or math.huge)
    if most > 0 then chunks, messages, attempts, taken, dead = take(most, again, 28, limit) end
    spend(allowed, messages)
  end
  if #attempts > 0 or number > next_there then set_apart(numbers()) end
  local fields = {}
  for i = 1, #attempts do
    fields[2 * i - 1], fields[2 * i] = number + i - 1, attempts[i] .. ':' .. chunks[1][i]
  end
  push('HSET', APART, fields, 1, #fields)
  for i = 1, #attempts > 0 and 0 or #chunks do push('LPUSH', INFLIGHT, chunks[i], 1, #chunks[i]) end
  number = number + messages
  normalise(bound, usual and length - taken or nil, usual and permits or nil, taken > 0)
end
if messages == 0 and not hold and call('EXISTS', INFLIGHT, APART) == 0 then
  call('DEL', KEYS[LEASE + CONSUMER])
  release(CONSUMER)
else
  call('HSET', KEYS[LEASE + CONSUMER], 'next', number)
  if not behind then call('HSET', KEYS[LEASE + CONSUMER], 'deadline', now() + ARGV[6], 'duration', ARGV[6]) end
end
if messages == 0 and dead == 0 then
  if allowed and not paused and call('LLEN', LIST) > 0 then return limited(allowed, nil, -1, closed) end
  return paused and {'paused'} or nothing()
end
return {'ok', chunks, attempts, dead}
