local clock
local function now()
  if not clock then
    local time = call('TIME')
    clock = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
  end
  return clock
end

-- When a message is due that was given as milliseconds from now, or as '@' and milliseconds since 1970; and when it
-- expires, if '!' and the milliseconds until then are behind that; what it costs, if '$' and that are behind it; and
-- its key, if '#' and that are behind it.
-- Returns: both, in milliseconds since 1970, with nil for one that does not expire; the key, or ''; the cost, or ''
local function due_time(text)
  local absolute, due, expires, cost, key = string.match(text, '^(@?)(%d+)!?(%d*)%$?(%d*)#?(.*)$')
  due = absolute == '@' and tonumber(due) or now() + tonumber(due)
  return due, expires ~= '' and now() + tonumber(expires) or nil, key, cost
end

-- The number in a text of ours, or nil: another program may have written there.
-- (Lua writes numbers of up to 14 digits without an exponent.)
local function natural(text)
  return text and #text <= 13 and string.find(text, '^%d+$') and tonumber(text) or nil
end

-- Fields of a hash of ours that are natural numbers, or missing.
-- Returns: their numbers, with nil for a missing one | nil, the answer that says what is wrong
local function naturals(key, ...)
  local values = call('HMGET', key, ...)
  for i = 1, #values do
    local number = natural(values[i])
    if values[i] and not number then
      return nil, {'corrupt', key .. ' has a field ' .. select(i, ...) .. ' that is not a number'}
    end
    values[i] = number
  end
  return values
end

-- The bound of a queue that need not have been created.
-- key: where it is noted | text: what is there (false: nothing) | expected: the caller knows that the queue was created
-- Returns: the bound (0: none), whether the queue was created | nil, an answer that says what is wrong
local function bound_in(key, text, expected)
  if not text then
    if expected then return nil, {'missing'} end
    return 0, false
  end
  local bound = natural(text)
  if not bound then return nil, {'corrupt', key .. ' is not a bound'} end
  return bound, true
end

-- Look for a message in a list of ids: the newest ones are leftmost, the next one is rightmost.
-- look: returns what there is of an id, or nil | Returns: what it returned first, for one of 1,100 ids, or nil
local function first_of(list, newest, look)
  for first = 0, 1000, 100 do
    local last = first + 99
    local ids = newest and call('LRANGE', list, first, last) or call('LRANGE', list, -last - 1, -first - 1)
    for i = 1, #ids do
      local found = look(newest and ids[i] or ids[#ids + 1 - i])
      if found then return found end
    end
    if #ids < 100 then return nil end
  end
end

-- Elements of a list from its right end on, the oldest first; up to about 1 MiB of them.
-- passed: how many to pass over | most: the most to return
local function page_of(list, passed, most)
  local found, bytes, chunk = {}, 0, 1
  while #found < most and bytes < 1048576 do
    local first = passed + #found + 1
    local some = call('LRANGE', list, -first - math.min(chunk, most - #found) + 1, -first)
    if #some == 0 then break end
    for i = #some, 1, -1 do
      found[#found + 1] = some[i]
      bytes = bytes + #some[i]
    end
    chunk = bytes < 65536 and math.min(2 * chunk, 200) or 1
  end
  return found
end

-- Run a command with any number of values, in chunks.
-- first, last: which of the values; all by default.
-- Returns: the answer to the last command
local function push(command, key, values, first, last)
  local answer
  last = last or #values
  for i = first or 1, last, CHUNK do
    answer = call(command, key, unpack(values, i, math.min(i + CHUNK - 1, last)))
  end
  return answer
end

-- What is not due yet in a sorted set by due times: those that are chosen, or else those that are due first.
-- chosen: these, or false | most: how many at most otherwise
local function later_ones(set, time, chosen, most)
  if not chosen then return call('ZRANGEBYSCORE', set, '(' .. time, '+inf', 'LIMIT', 0, most) end
  local dues, later = call('ZMSCORE', set, unpack(chosen)), {}
  for i = 1, #dues do
    if dues[i] and tonumber(dues[i]) > tonumber(time) then later[#later + 1] = chosen[i] end
  end
  return later
end

-- Make members of a sorted set by due times, in milliseconds, due now, in this order.
local function make_due(set, members)
  local scores = {}
  for i = 1, #members do
    scores[2 * i - 1], scores[2 * i] = now() - 1 + 0.0003 * i, members[i]  -- a fraction keeps their order
  end
  push('ZADD', set, scores)
end

-- What an answer tells of dead letters, for the log: it names the first 20.
-- letters: {{name, contents, how often it was delivered}, ...}
-- Returns: {how many, name, how often, how its contents begin, the next name...} | 0 for none
local function told(letters)
  if #letters == 0 then return 0 end
  local found = {#letters}
  for i = 1, math.min(#letters, 20) do
    local name, contents, times = unpack(letters[i])
    found[3 * i - 1], found[3 * i], found[3 * i + 1] = tostring(name), times, string.sub(contents or '', 1, 1001)
  end
  return found
end
