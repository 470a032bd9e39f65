-- Returns: why a queue cannot take dead letters, or nil. Writes nothing.
-- first: where the keys of the dead-letter queue begin; behind them are those of which none may exist when it is made.
local function misfit(first)
  switch_to(first)
  local fine, bound, wrong = pcall(check, PRODUCER)
  local why
  if not fine then
    why = 'a key of ' .. LIST .. ' is of the wrong type'
  elseif wrong and wrong[1] == 'corrupt' then
    why = wrong[2]
  elseif not bound then
    local other = collision(first + 27)
    if other then
      why = LIST .. ' would share a key with the queue ' .. string.sub(KEYS[other], 1, -7)
    elseif call('EXISTS', CLOSED) == 1 then
      why = LIST .. ' is being deleted, and they would be deleted with it'
    end
  end
  switch_to(1)
  return why
end

-- Returns: why dead letters cannot be moved, or nil. Writes nothing.
-- first: as above. limit: how often a message is delivered at most.
local function obstacle(first, limit)
  local why = misfit(first)
  if not why then return nil end
  for _, entry in ipairs(call('LRANGE', REDELIVERED, 0, -1)) do
    if (redelivery(entry) or 0) >= limit then return why end
  end
end

-- How many of the next `most` messages may travel together. One that has been delivered before travels alone: a message
-- that kills its consumer must not use up the attempts of others.
local function unsuspected(most)
  local entry, message = call('LINDEX', REDELIVERED, -1), call('LINDEX', LIST, -1)
  if not (entry and message) then return most end
  local _, digest, place = redelivery(entry)
  if digest == digest_of(message) then return 1 end
  local popped = place and popped_so_far()
  if not popped or place <= popped + 1 then return most end
  return math.min(most, place - popped - 1)  -- as far as it, which is behind some others
end

-- Why messages failed is in a hash beside the dead-letter queue, in these fields:
-- 'f' and a digest, for a message that came back: 'time:attempt:error', of the latest attempt that ended with an error.
-- 'd' and a digest, for dead letters: a line 'time:attempts:attempt:error' for each one with that content, the latest
-- one last; attempt is 0 where no error is known.
-- Nothing depends on it: other clients take dead letters away and leave the reasons, and it may be missing.
local MOST_REASONS, MOST_TWINS, REASONS_MS = 5000, 20, 2592000000

-- Can reasons be kept at a key? Another program may have written a value of another type.
local function holds_reasons(key)
  return key and type(redis.pcall('HLEN', key)) == 'number'
end

local function failure_field(message)
  return 'f' .. digest_of(LIST .. ' ' .. message)  -- several queues may share a dead-letter queue
end

local function letter_field(message)
  return 'd' .. digest_of(message)
end

-- The lines of a field for dead letters, the latest one last.
local function lines_of(key, field)
  local lines = {}
  for line in string.gmatch(call('HGET', key, field) or '', '[^\n]+') do lines[#lines + 1] = line end
  return lines
end

-- Write fields and values. Where there are too many, the oldest tenth goes.
local function write_reasons(key, values)
  if #values == 0 then return end
  push('HSET', key, values, 1, #values)
  call('PEXPIRE', key, REASONS_MS)
  if call('HLEN', key) <= MOST_REASONS then return end
  local fields, known, dropped = call('HKEYS', key), {}, {}
  for i = 1, #fields, CHUNK do
    local last = math.min(i + CHUNK - 1, #fields)
    local texts = call('HMGET', key, unpack(fields, i, last))
    for j = i, last do
      known[j] = {natural(string.match(texts[j - i + 1] or '', '^%d+')) or 0, fields[j]}
    end
  end
  table.sort(known, function(a, b) return a[1] < b[1] end)
  for i = 1, #known - MOST_REASONS * 0.9 do dropped[i] = known[i][2] end
  push('HDEL', key, dropped, 1, #dropped)
end

-- Note the errors of deliveries in flight: {number -> error}.
local function note_failures(errors, key)
  if not holds_reasons(key) then return end
  local values = {}
  local _, next_number = numbers()
  for number, text in pairs(errors) do
    local message, times = look_apart(number)
    if not message and number < next_number then
      message, times = call('LINDEX', INFLIGHT, next_number - 1 - number), 1
    end
    if message then
      values[#values + 1] = failure_field(message)
      values[#values + 1] = now() .. ':' .. times .. ':' .. text
    end
  end
  write_reasons(key, values)
end

-- Forget the errors of deliveries that are about to be acknowledged.
-- values[from..to]: ranges, as for `acknowledge`.
local function forget_failures(values, from, to, key)
  if not holds_reasons(key) then return end
  local fields = {}
  for i = from, to, 3 do
    for number = tonumber(values[i]), tonumber(values[i + 1]) do
      local message, times = look_apart(number)
      if message and times > 1 then fields[#fields + 1] = failure_field(message) end
    end
  end
  push('HDEL', key, fields, 1, #fields)
end

-- Read what a step gives back: ARGV[from...], each 'number' or 'number:error', with '>milliseconds' behind the number
-- if it is due after these, and with '-' if that was no attempt. '=number:reply' is the reply to an acknowledged one.
-- leave: all that is in flight goes back in order, so only the errors matter, and when some are due.
-- Returns: the numbers to give back | {number -> error}, or nil if there are no errors | {number -> when it is due} |
--          {number -> true, if that was no attempt} | {number -> its reply, as `send_replies` reads it}
local function read_returned(from, leave)
  local returned, errors, dues, released, replies = {}, nil, {}, {}, {}
  for i = from, #ARGV do
    local answers, number, mark, due, text = string.match(ARGV[i], '^(=?)(%d+)(%-?)>?(%d*)(.*)$')
    number = tonumber(number)
    released[number] = mark == '-' or nil
    if text ~= '' and answers == '' then
      errors = errors or {}
      errors[number] = string.sub(text, 2)
    end
    if answers == '=' then
      replies[number] = string.sub(text, 2)
    elseif due ~= '' then
      dues[number] = due
    elseif not (text ~= '' and leave) then
      returned[#returned + 1] = number
    end
  end
  return returned, errors, dues, released, replies
end

-- Keep why a message is a dead letter, behind the reasons of those with the same content.
-- time: when it became one. It also tells dead letters with the same content apart.
-- text: 'attempts:attempt:error'
local function keep_reason(key, message, time, text)
  local field = letter_field(message)
  local lines = lines_of(key, field)
  local latest = natural(string.match(lines[#lines] or '', '^%d+')) or 0
  lines[#lines + 1] = string.format('%.0f', math.max(time, latest + 1)) .. ':' .. text
  write_reasons(key, {field, table.concat(lines, '\n', math.max(1, #lines - MOST_TWINS + 1))})
end

-- Keep why messages of this queue become dead letters, and tell those who wait for a reply.
-- attempts: how often each was delivered.
local function keep_reasons(key, dead, attempts)
  local holds = holds_reasons(key)
  for i = 1, #dead do
    local failed = failure_field(dead[i])
    local at, text = string.match(holds and call('HGET', key, failed) or '', '^%d+:(%d+):(.*)$')
    at = natural(at)
    if not at or at > attempts[i] then at, text = 0, '' end  -- or it belongs to an earlier message with this content
    local request = request_in(dead[i])
    if request then answer_request(request, 'd' .. text) end
    if holds then
      call('HDEL', key, failed)
      keep_reason(key, dead[i], now(), attempts[i] .. ':' .. at .. ':' .. text)
    end
  end
end

-- Drop why a message was a dead letter: the line with this time, or nil for the oldest line.
local function drop_reason(key, message, time)
  local field, kept, dropped = letter_field(message), {}, false
  for _, line in ipairs(lines_of(key, field)) do
    if dropped or time and string.match(line, '^%d+') ~= time then
      kept[#kept + 1] = line
    else
      dropped = true
    end
  end
  if #kept > 0 and dropped then
    call('HSET', key, field, table.concat(kept, '\n'))
  elseif dropped then
    call('HDEL', key, field)
  end
end

-- Where a chosen dead letter is in the list at `key`; nil if it is gone. Of several with the same content, any one will
-- do while the reason that was shown with it is still there.
-- ARGV[place...]: the message, and the time of its reason or ''. reasons: where reasons are, or nil.
local function index_of(key, reasons, place)
  local message, time = ARGV[place], ARGV[place + 1]
  local there = time == ''
  for _, line in ipairs(not there and reasons and lines_of(reasons, letter_field(message)) or {}) do
    there = there or string.match(line, '^%d+') == time
  end
  return there and call('LPOS', key, message, 'RANK', -1)
end

-- Take chosen dead letters out of this queue, with their reasons, in order up to the first one that is gone, or before
-- the step takes too long.
-- ARGV[from...]: these, as above. most: how many at most. left: how many there are.
-- Returns: the messages | their bytes
local function take_chosen(from, most, left, reasons)
  local messages, bytes = {}, 0
  call('LREM', KEYS[FREE + CONSUMER], 0, '')  -- changes nothing; but a user without the right to LREM fails here
  local passed = 0  -- elements of the list: the server does nothing else meanwhile
  for i = from, from + 2 * most - 1, 2 do
    local index = passed < MOST_PASSED and index_of(LIST, reasons, i)
    if not index then break end
    passed = passed + left - index
    call('LREM', LIST, -1, ARGV[i])
    messages[#messages + 1] = ARGV[i]
    bytes = bytes + #ARGV[i]
    if reasons and ARGV[i + 1] ~= '' then drop_reason(reasons, ARGV[i], ARGV[i + 1]) end
  end
  return messages, bytes
end

-- Put messages into a dead-letter queue, and make that if need be.
-- Returns: their bytes, and how many dead letters there were before
local function bury(first, dead)
  local bytes = 0
  for i = 1, #dead do bytes = bytes + #dead[i] end
  switch_to(first)
  if call('EXISTS', BOUND) == 0 then make(0) end
  local before = push('LPUSH', LIST, dead, 1, #dead) - #dead
  count(PRODUCER, #dead, bytes)
  normalise(tonumber(call('GET', BOUND)))
  switch_to(1)
  return bytes, before
end

-- attempts: how often each of the messages was delivered.
-- Returns: as `told` does
local function move_to_dead_letters(first, dead, attempts)
  keep_reasons(KEYS[first + 26], dead, attempts)
  local bytes, before = bury(first, dead)
  count(CONSUMER, #dead, bytes)
  local letters = {}
  for i = 1, #dead do letters[i] = {before + i, dead[i], attempts[i]} end
  return told(letters)
end

-- Take up to `most` messages from the queue. Those that were delivered often enough become dead letters.
-- again: some have been delivered before. first, limit: as above.
-- Returns: {{messages}...} | how many these are | {attempts} or {} (each the first) | how many left the queue |
--          the dead letters, as `told` returns them: their names are their places in the dead-letter queue
local function take(most, again, first, limit)
  local MOST_DEAD = 50  -- in one step: each is checked by itself
  local chunks, messages, attempts, dead, died = {}, 0, {}, {}, {}
  local total, taken = 0, 0
  repeat
    local popped, count_of, bytes = pop(limit == 1 and 1 or limit > 0 and unsuspected(most) or most)
    local all = again and count_of > 0 and flat(popped)
    if all then
      local tried, kept = attempts_of(all), {}
      for i = 1, #all do
        local to = limit > 0 and tried[i] > limit and dead or kept
        to[#to + 1] = all[i]
        if to == kept then attempts[#attempts + 1] = tried[i] else died[#died + 1] = tried[i] - 1 end
      end
      chunks, messages = {kept}, #kept
    else
      chunks, messages = popped, count_of  -- every one for the first time
    end
    total = total + bytes
    taken = taken + count_of
  until messages > 0 or count_of == 0 or #dead >= MOST_DEAD or total >= 1048576
  return chunks, messages, attempts, taken, #dead > 0 and move_to_dead_letters(first, dead, died) or 0
end

