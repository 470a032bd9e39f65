-- An entry of DELAYED is 'series:step:index:times:message'. The first three tell entries from each other, and keep the
-- order of those that are due in the same millisecond. `times` says how often the message has been delivered; its
-- errors are among the reasons of the dead-letter queue, as those of any message that came back.

-- Returns: the message of an entry, how often it has been delivered, true if another program wrote the entry (then all
--          of it counts as a message, so that nothing is lost)
local function look_later(entry)
  local times, from = string.match(entry, '^%x+:%d+:%d+:(%d+):()')
  times = natural(times)
  if not times then return entry, 0, true end
  return string.sub(entry, from), times
end

-- Milliseconds after which the first delayed message is due, 0 if it is overdue; -1 where there is none.
local function next_due()
  local first = first_due()
  return first and math.max(0, math.min(1e13, math.ceil(first - now()))) or -1
end

-- This client is about to wait for messages. usual: nothing is delayed, as `survey` says.
-- Returns: as `next_due` does. From then on, SOONER tells of one that is due earlier.
local function wait_for_due(usual)
  call('DEL', SOONER)
  return usual and -1 or next_due()
end

-- Keep messages for later, and tell those that wait for messages when the first one is due.
-- values: when each is due, how often it has been delivered, and the message, and so on
-- Returns: when the first of them is due
local function delay(sequence, values)
  if #values == 0 then return end
  local series, entries, first = string.match(OP, '[^:]*$'), {}, math.huge
  for i = 1, #values, 3 do
    first = math.min(first, values[i])
    entries[#entries + 1] = values[i]
    entries[#entries + 1] = string.format('%s:%013d:%04d:%d:', series, sequence, (i - 1) / 3, values[i + 1])
        .. values[i + 2]
  end
  push('ZADD', DELAYED, entries)
  if call('ZCOUNT', DELAYED, '-inf', '(' .. first) == 0 then wake(SOONER) end
  return first
end

-- Keep deliveries for later that are given back: {number -> when it is due}. Returns: how many
local function put_off(sequence, dues)
  local sorted, values, gone = {}, {}, {}
  for number in pairs(dues) do sorted[#sorted + 1] = number end
  if #sorted == 0 then return 0 end
  table.sort(sorted)
  local oldest, next_number = numbers()
  set_apart(oldest, math.min(next_number, sorted[#sorted] + 1))
  for i = 1, #sorted do
    local message, times = look_apart(sorted[i])
    if message then
      gone[#gone + 1] = sorted[i]
      local n = #values
      values[n + 1], values[n + 2], values[n + 3] = due_time(dues[sorted[i]]), times, message
    end
  end
  call('HDEL', APART, '')  -- as in `put_back`
  delay(sequence, values)
  push('HDEL', APART, gone)
  return #gone
end

-- Put delayed messages that are due at the end of the line: at most 100, or about 1 MiB of them. They are produced now,
-- but for those that were delivered before. Their order is that of their times. They are put even where other clients
-- have filled the queue meanwhile: our own puts have left room for them.
-- careful: as for `heal`
local function promote(bound, careful)
  local due, size = {}, 0
  for _, most in ipairs({2, 4, 15, MOST_DUE - 21}) do
    local some = call('ZRANGEBYSCORE', DELAYED, '-inf', now(), 'LIMIT', #due, most)
    for i = 1, #some do
      due[#due + 1] = some[i]
      size = size + #some[i]
    end
    if #some < most or size > 1048576 then break end
  end
  if #due == 0 then return end
  call('LLEN', REDELIVERED)  -- raises an error where it is of the wrong type: before a message is put
  if careful then respect_memory_limit() else ignore_memory_limit() end
  local messages, tried, fresh, bytes, popped = {}, {}, 0, 0, popped_so_far() or 1e9
  local line = popped + call('LLEN', LIST)
  for i = 1, #due do
    local message, times = look_later(due[i])
    messages[i] = message
    if times > 0 then
      tried[#tried + 1] = string.format('%d@%.0f:', times, line + i) .. digest_of(message)
    else
      fresh, bytes = fresh + 1, bytes + #message
    end
  end
  call('ZREM', DELAYED, '')  -- changes nothing; but a user without the right to it fails here, before the LPUSH
  if fresh > 0 then count(PRODUCER, fresh, bytes) end
  if #tried > 0 then
    call('SET', POPPED, string.format('%.0f', popped))
    push('LPUSH', REDELIVERED, tried)
  end
  push('LPUSH', LIST, messages)
  push('ZREM', DELAYED, due)
  normalise(bound)
  if bound > 0 and delayed() == 0 then wake(ROOM) end  -- those that wait there wait for a permit now
  if call('EXISTS', CLOSED) == 1 then wake(SOONER) end  -- those that wait for the end do not wait for messages
end
