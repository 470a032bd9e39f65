-- Move messages from the queue to what is in flight under this client's lease, acknowledging earlier ones on the way.
-- Statistics count a message when it is acknowledged.
-- KEYS: those of the prelude
-- ARGV: 1 uid, 2 lease token, 3 '1' if the role may be taken for this (a receive by hand), 4 '1' if it was claimed,
--       5 the most messages to receive, 6 milliseconds of the lease, 7 the sequence number to go on with,
--       8... sequence numbers to acknowledge
-- Returns: {'ok', {messages}, {attempts}} | {'empty'} | {'closed'} | {'missing'} | {'corrupt', why} | {'lost'} |
--          {'busy', role, holder, milliseconds of its lease or -1}
local uid, token, held, next_number = ARGV[1], ARGV[2], ARGV[4], tonumber(ARGV[7])
local bound, wrong = check(CONSUMER)
local mine = call('HGET', CONSUMER.lease, 'token') == token
if wrong then return refuse(wrong, CONSUMER, held, token, bound) end
local closed = call('EXISTS', CLOSED)
if mine then heal(PRODUCER, bound) else heal_all(bound) end
local entered, refusal = enter(CONSUMER, held, (mine or ARGV[3] ~= '1') and token or '')
if not entered then return refusal end

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
acknowledge(ARGV, 8, #ARGV)

local messages, attempts = {}, {}
local number = tonumber(call('HGET', CONSUMER.lease, 'next'))
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
  messages = pop(tonumber(ARGV[5]))
  attempts = attempts_of(messages)
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
  return {closed == 1 and 'closed' or 'empty'}
end
return {'ok', messages, attempts}
