-- Pop up to max messages, or about 1 MiB of them, in chunks whose size follows the size of the messages.
-- command, key: another end, and another list; nil for the next messages of the queue.
-- Returns: {{messages}...}, number of messages, their bytes
local function pop(max, command, key)
  key = key or LIST
  local chunks, messages, bytes = {}, 0, 0
  local chunk = 1
  while messages < max and bytes < 1048576 do
    local popped = call(command or 'RPOP', key, math.min(chunk, max - messages))
    if not popped or #popped == 0 then break end
    for i = 1, #popped do bytes = bytes + #popped[i] end
    messages = messages + #popped
    chunks[#chunks + 1] = popped
    local fit = bytes > 0 and math.floor((1048576 - bytes) * messages / bytes) or 200
    chunk = math.min(200, 4 * chunk, fit, max - messages)
    if chunk > 16 then
      -- Many large messages may stand behind small ones.
      local last, furthest = -chunk, 0
      if command == 'LPOP' then last, furthest = chunk - 1, -1 end
      last = call('LINDEX', key, last) or call('LINDEX', key, furthest) or ''
      chunk = math.min(chunk, math.floor((1048576 - bytes) / math.max(1, #last)))
    end
    chunk = math.max(1, chunk)
  end
  return chunks, messages, bytes
end

-- The messages of all chunks, in one list.
local function flat(chunks)
  if #chunks == 1 then return chunks[1] end
  local messages = {}
  for i = 1, #chunks do
    for j = 1, #chunks[i] do messages[#messages + 1] = chunks[i][j] end
  end
  return messages
end

-- The bytes of the deliveries from first to last, as far as they are in flight.
local function size_of(first, last, oldest, next_number)
  local bytes = 0
  for number = first, math.min(last, oldest - 1) do bytes = bytes + #(look_apart(number) or '') end
  first, last = math.max(first, oldest), math.min(last, next_number - 1)
  if first <= last then
    local messages = call('LRANGE', INFLIGHT, next_number - 1 - last, next_number - 1 - first)
    for i = 1, #messages do bytes = bytes + #messages[i] end
  end
  return bytes
end

-- Are the deliveries from first to last in flight, all of them?
local function all_in_flight(first, last, oldest, next_number)
  if last >= next_number then return false end
  for number = first, math.min(last, oldest - 1) do
    if call('HSTRLEN', APART, number) == 0 then return false end
  end
  return true
end

-- Acknowledge deliveries; statistics count them now. Returns: how many
-- values[from..to]: ranges, each its first number, its last one, and the bytes of its messages. A client repeats a
-- range unchanged, so all of it is in flight, or none. Only a server that has taken over may lack the end of a range.
local function acknowledge(values, from, to)
  local messages, bytes = 0, 0
  local oldest, next_number
  if from <= to then oldest, next_number = numbers() end
  for i = from, to, 3 do
    local first, last, gone = tonumber(values[i]), tonumber(values[i + 1]), 0
    local whole = last >= oldest and last < next_number or last < oldest and call('HSTRLEN', APART, last) > 0
    local size = whole and tonumber(values[i + 2]) or size_of(first, last, oldest, next_number)
    local apart = {}
    for number = first, math.min(last, oldest - 1) do apart[#apart + 1] = number end
    for j = 1, #apart, CHUNK do
      gone = gone + call('HDEL', APART, unpack(apart, j, math.min(j + CHUNK - 1, #apart)))
    end
    last = math.min(last, next_number - 1)
    if last >= math.max(oldest, first) then
      if first > oldest then
        set_apart(oldest, first)
        oldest = first
      end
      call('LTRIM', INFLIGHT, 0, oldest - last - 2)
      gone = gone + last + 1 - oldest
      oldest = last + 1
    end
    if gone > 0 then messages, bytes = messages + gone, bytes + size end
  end
  if messages > 0 then count(CONSUMER, messages, bytes) end
  return messages
end

-- Read an entry of REDELIVERED: 'times:digest' or 'times@place:digest'.
-- Returns: how often the message was delivered, its digest, its place or nil | nil for any other text
local function redelivery(entry)
  local times, place, digest = string.match(entry, '^(%d+)(@?%d*):(.*)$')
  times = natural(times)
  if not times then return nil end
  if place == '' then return times, digest end
  place = natural(string.sub(place, 2))
  if place then return times, digest, place end
end

-- How often each of these messages, which were just popped, has been delivered, this time included.
-- The entries of REDELIVERED are in the order of the right end of the queue: how often, and the message's digest. Other
-- clients pop messages without their entries. So entries that were passed over are dropped, and also the oldest ones,
-- if there are more entries than messages.
-- A message that was delayed comes back at the left end, behind messages that may have the same content. So its entry
-- says at which place of the line it is: POPPED counts what leaves the line, and it will be the one with that number.
-- Other clients do not count; then it comes earlier. So a message takes the attempts of an entry with its content,
-- unless a message with that content still is at the place of the entry. An entry whose place
-- has passed is dropped.
local function attempts_of(messages)
  local attempts = {}
  for i = 1, #messages do attempts[i] = 1 end
  local total = call('LLEN', REDELIVERED)
  if total == 0 then return attempts end
  local popped = popped_so_far()
  shift(#messages)
  local entries = call('LRANGE', REDELIVERED, -(#messages + 100), -1)
  local places, times, stand = {}, {}, {}  -- digest -> the places of its entries, the rightmost last
  for j = 1, #entries do
    local digest
    times[j], digest, stand[j] = redelivery(entries[j])
    if not popped then stand[j] = nil end
    if digest then
      places[digest] = places[digest] or {}
      table.insert(places[digest], j)
    end
  end
  local last = #entries
  for i = 1, #messages do
    local digest = digest_of(messages[i])
    local found = places[digest]
    local j = found and found[#found]
    while j and (j > last or stand[j] and stand[j] < popped + i) do
      table.remove(found)
      j = found[#found]
    end
    local later = j and stand[j] and stand[j] > popped + i and stand[j] - popped
    if later then
      later = messages[later] or later > #messages and call('LINDEX', LIST, #messages - later)
      if later and digest_of(later) == digest then j = nil end  -- that one has been delivered before, this one has not
    end
    if j then
      last = j - 1
      attempts[i] = times[j] + 1
    end
  end
  for j = 1, last do
    if stand[j] and stand[j] <= popped + #messages then
      last = j - 1
      break
    end
  end
  local length, kept = call('LLEN', LIST), total - #entries + last
  if not popped or length == 0 then kept = math.min(kept, length) end
  if kept == 0 then
    call('DEL', REDELIVERED, POPPED)
  elseif kept < total then
    local right = total - #entries + last - 1
    call('LTRIM', REDELIVERED, right - kept + 1, right)
  end
  return attempts
end

