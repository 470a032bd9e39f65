-- Take messages out of the queue for the batch after `start`, and seal it when it has enough, or the queue is empty
-- (specification: Get). A sealed batch is returned as it is; an incomplete one is filled further. Safe to repeat.
-- KEYS: those of the queue's prelude, 28 the group's state, 29 the list of the batch after `start`
-- ARGV: 1 uid, 2 '1' if the consumer role was claimed, 3 epoch, 4 `start`: the number of the last batch that the query has,
--       5 the most messages of the batch or 0, 6 the most to move in this step,
--       7 how many messages may ever have left the queue, or '' for any number,
--       8 '1' to seal an empty batch where the queue is closed and empty,
--       9 the most bytes of the batch or 0; the messages of one step more may be in it
-- Returns: {'sealed', number} | {'more', messages in it so far} | {'empty'} (or paused, limited or delayed) | {'closed'} (and empty) |
--          {'fenced', current epoch} | {'behind', number of the last committed batch} | {'missing'} | {'corrupt', why} |
--          {'busy', role, holder, milliseconds of its lease or -1}
local GROUP, BATCH = KEYS[28], KEYS[29]
local claimed, start, most, most_bytes = ARGV[2], tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[9])
local epoch = call('HGET', GROUP, 'epoch')
local state, answer = naturals(GROUP, 'committed', 'sealed', 'rows')
if epoch ~= ARGV[3] then
  answer = {'fenced', epoch or ''}
elseif state and (state[1] or 0) > start then
  answer = {'behind', state[1]}
elseif state and (state[2] or 0) > start then
  answer = {'sealed', start + 1}
end
if answer then
  unclaim(CONSUMER, claimed)
  return answer
end

local staged = call('LLEN', BATCH)
local staged_bytes = natural(call('HGET', GROUP, 'bytes')) or 0  -- (nil for bytes that nobody counted)
local function is_full()
  return (most > 0 and staged >= most) or (most_bytes > 0 and staged_bytes >= most_bytes)
end
local function seal()
  call('HDEL', GROUP, 'bytes')
  if staged_bytes then call('HSET', GROUP, 'size-' .. (start + 1), staged_bytes) end
  local rows = state[3] or 0
  call('HSET', GROUP, 'sealed', start + 1, 'rows', rows + staged, 'first-' .. (start + 1), rows, 'at-' .. (start + 1), now())
  if not state[1] then call('HSET', GROUP, 'committed', start) end
  return {'sealed', start + 1}
end

local bound, wrong, length, permits = check(CONSUMER)
if wrong then
  refuse(wrong, CONSUMER, claimed, '', bound)
  if wrong[1] == 'missing' and staged > 0 then return seal() end  -- keep what was taken before the queue was deleted
  return wrong
end
local closed, usual, leased = survey(bound)
if not usual then length, permits = call('LLEN', LIST), nil end
local waiting = length
if ARGV[7] ~= '' then
  local left = integer(KEYS[MESSAGES + 2 * CONSUMER], '0') + in_flight()
  waiting = math.max(0, math.min(length, tonumber(ARGV[7]) - left))
end
wrong = not usual and damaged_limits()
if wrong then return refuse(wrong, CONSUMER, claimed, '', bound) end
local paused = not usual and is_paused()
local allowed = not (usual or paused) and allowance()  -- a batch in flight is one for the query: only the rate counts
if paused then waiting = 0 end
if allowed then waiting = math.min(waiting, allowed.most) end
if waiting == 0 or is_full() then
  unclaim(CONSUMER, claimed)
  if staged > 0 then return seal() end
  if closed == 0 or length > 0 or paused or delayed() > 0 then return {'empty'} end
  if ARGV[8] ~= '1' then return {'closed'} end
  ignore_memory_limit()
  call('HSET', GROUP, 'empty-' .. (start + 1), 1)
  return seal()
end
local entered, refusal = enter(CONSUMER, claimed, '', usual and not leased)
if not entered then return staged > 0 and seal() or refusal end

ignore_memory_limit()
unclaim(CONSUMER, claimed)
call('SET', KEYS[HOLDER + CONSUMER], ARGV[1])
local taken
-- The whole queue can be renamed if it is small enough. RENAME does not say its bytes: the statistics do.
local whole = staged == 0 and waiting == length and (most == 0 or length <= most)
local produced, consumed
if whole then
  local counted = call('MGET', KEYS[MESSAGES + 2 * PRODUCER], KEYS[MESSAGES + 2 * CONSUMER])
  local all = (tonumber(counted[2]) or 0) + length
  if tonumber(counted[1]) == all then  -- nothing is in flight, and all clients count
    produced, consumed = integer(KEYS[BYTES + 2 * PRODUCER]), integer(KEYS[BYTES + 2 * CONSUMER], '0')
    if produced and consumed and produced < consumed then produced = nil end  -- another program has written them
  end
  whole = most_bytes == 0 or (produced ~= nil and consumed ~= nil and produced - consumed <= most_bytes)
end
if whole then
  taken = length
  call('INCRBY', KEYS[MESSAGES + 2 * CONSUMER], taken)
  staged_bytes = produced and consumed and produced - consumed
  if produced and consumed and produced > consumed then
    call('SET', KEYS[BYTES + 2 * CONSUMER], call('GET', KEYS[BYTES + 2 * PRODUCER]))
  end
  call('RENAME', LIST, BATCH)
  call('DEL', REDELIVERED, POPPED)
else
  local portions, bytes
  portions, taken, bytes = pop(math.min(waiting, tonumber(ARGV[6]), most > 0 and most - staged or waiting))
  for i = 1, #portions do call('LPUSH', BATCH, unpack(portions[i])) end
  count(CONSUMER, taken, bytes)
  staged_bytes = staged_bytes + bytes
  shift(taken)
  if taken == length then call('DEL', REDELIVERED, POPPED) end
end
spend(allowed, taken)
staged = staged + taken
normalise(bound, length - taken, permits, taken > 0)
if taken == waiting or is_full() then return seal() end
call('HSET', GROUP, 'bytes', staged_bytes)
return {'more', staged}
