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

-- How many messages are delayed. (A queue without any needs no rights on sorted sets.)
local function delayed()
  SORTED = SORTED or call('EXISTS', DELAYED) == 1
  return SORTED and call('ZCARD', DELAYED) or 0
end

-- When the first delayed message is due, in milliseconds; nil where there is none.
local function first_due()
  return delayed() > 0 and tonumber(call('ZRANGE', DELAYED, 0, 0, 'WITHSCORES')[2]) or nil
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
  if not wrong and role ~= PRODUCER and (first_due() or math.huge) <= now() then  -- any step puts what is due
    _, wrong = integer(KEYS[MESSAGES + 2 * PRODUCER], '0')
    if not wrong then _, wrong = integer(KEYS[BYTES + 2 * PRODUCER], '0') end
  end
  return bound, wrong, length, permits
end

-- As `recall`, for results that are numbers: 0 for a step that comes too late.
local function recall_number(sequence, repeated)
  local result = recall(sequence, repeated)
  return result and (natural(result) or 0)
end

-- As `recall`, for results that say how many were handled, and how many were left then.
-- Returns: nil | {'ok', handled, left}, both 0 for a step that comes too late
local function recall_rest(sequence, repeated)
  local result = recall(sequence, repeated)
  if not result then return nil end
  local handled, left = string.match(result, '^(%d+):(%d+)$')
  return {'ok', natural(handled) or 0, natural(left) or 0}
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
  for i = FIRST, FIRST + 25 do
    if KEYS[i] ~= BOUND then call('DEL', KEYS[i]) end
  end
  call('LPUSH', KEYS[FREE + PRODUCER], 1)
  call('LPUSH', KEYS[FREE + CONSUMER], 1)
  call('LPUSH', NOT_FULL, 1)
end

