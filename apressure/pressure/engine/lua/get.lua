-- Get messages (specification: Get). A closed queue still delivers the messages that it holds.
-- KEYS: those of the prelude, 28 turns, 29 watch
-- ARGV: 1 uid, 2 '1' if the consumer role was claimed, 3 the most messages to get,
--       4 sequence, if replicas must know of this get, or '', 5 place of this client in the line, or '' if it does not
--       wait
-- Returns: {'messages', {messages}...} | {'empty'} (to a client that does not wait) |
--          {'watch', -1, due} (watch the queue) | {'turn', milliseconds} (wait in line, and try again after that) |
--          {'draining', -1, due} (closed, and some are delayed) | {'limited', -1, due} (some wait, but the limits of
--          the queue keep them; with a 1 behind it, or behind {'turn', milliseconds, -1}, if it is closed) |
--          {'paused'} | {'closed'} | {'missing'} |
--          {'corrupt', why} |
--          {'busy', role, holder, milliseconds of its lease or -1};
--          with the milliseconds after which a delayed message is due, or another message may be taken, or -1
local claimed = ARGV[2]
local bound, wrong, length, permits = check(CONSUMER)
if wrong then return refuse(wrong, CONSUMER, claimed, '', bound) end
local closed, usual, leased = survey(bound)
if not usual then length, permits = nil, nil end  -- healing may have changed them
local place = ARGV[5]
wrong = not usual and damaged_limits()
if wrong then return refuse(wrong, CONSUMER, claimed, '', bound) end
if not usual and is_paused() then
  ignore_memory_limit()
  unclaim(CONSUMER, claimed)
  if place ~= '' then pass_on(place) end  -- it waits for the end of the pause now
  return {'paused'}
end
local entered, refusal = enter(CONSUMER, claimed, '', usual and not leased)
if not entered then
  if place ~= '' then  -- it waits for the role now
    ignore_memory_limit()
    pass_on(place)
  end
  return refusal
end

ignore_memory_limit()
unclaim(CONSUMER, claimed)
call('SET', KEYS[HOLDER + CONSUMER], ARGV[1])
local allowed = not usual and allowance()
local chunks, messages, bytes = pop(math.min(tonumber(ARGV[3]), allowed and allowed.most or math.huge))
spend(allowed, messages)
if not usual and messages > 0 then
  shift(messages)
  if call('LLEN', LIST) == 0 and call('EXISTS', POPPED) == 1 then call('DEL', REDELIVERED, POPPED) end
end
normalise(bound, length and length - messages, permits, messages > 0)
if allowed and messages == 0 and call('LLEN', LIST) > 0 then return limited(allowed, place, -1, closed) end
if messages == 0 and closed == 0 then
  if place == '' then return {'empty'} end
  local left = watched_by_another(place)
  return left and {'turn', left} or {'watch', -1, wait_for_due(usual)}
end
if place ~= '' then pass_on(place) end
if messages == 0 then
  if not usual and delayed() > 0 then return {'draining', -1, wait_for_due()} end
  return {'closed'}
end
count(CONSUMER, messages, bytes)
if ARGV[4] ~= '' then record(ARGV[4], messages) end
return {'messages', unpack(chunks)}
