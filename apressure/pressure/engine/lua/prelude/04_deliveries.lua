-- fakeredis has no digests: there, a message stands for itself.
local digest_of = redis.sha1hex or function(message) return message end

-- How many messages have left the line, as POPPED counts that; nil where nobody counts.
local function popped_so_far()
  local text = redis.pcall('GET', POPPED)
  return type(text) == 'string' and natural(text) or nil
end

-- So many messages have left the line at its right end, or, where that is below 0, came back there.
local function shift(messages)
  local popped = popped_so_far()
  if popped then call('SET', POPPED, string.format('%.0f', popped + messages)) end
end

-- Returns: the number of the oldest delivery in INFLIGHT, the number after its newest one
local function numbers()
  local next_number = natural(call('HGET', KEYS[LEASE + CONSUMER], 'next')) or 1e15  -- unknown: above all others
  return next_number - call('LLEN', INFLIGHT), next_number
end

-- How many messages are in flight.
local function in_flight()
  return call('LLEN', INFLIGHT) + call('HLEN', APART)
end

-- Move the deliveries before a number from INFLIGHT to APART.
-- oldest: the number of the oldest delivery in INFLIGHT.
local function set_apart(oldest, number)
  local messages = number > oldest and call('LRANGE', INFLIGHT, oldest - number, -1) or {}
  local fields = {}
  for i = #messages, 1, -1 do
    fields[#fields + 1], fields[#fields + 2] = number - i, '1:' .. messages[i]
  end
  push('HSET', APART, fields, 1, #fields)
  if #messages > 0 then call('LTRIM', INFLIGHT, 0, -#messages - 1) end
end

-- Returns: the message of a delivery in APART, how often it has been delivered, true if another program wrote the entry
--          (then all of it counts as a message, so that nothing is lost) | nil
local function look_apart(number)
  local entry = call('HGET', APART, number)
  if not entry then return nil end
  local colon = string.find(entry, ':', 1, true)
  local times = colon and natural(string.sub(entry, 1, colon - 1))
  if not times then return entry, 1, true end
  return string.sub(entry, colon + 1), times
end

-- Put deliveries from APART back on the right end, the oldest rightmost, and record how often each was delivered.
-- sequences: their numbers, ascending.
-- untouched: deliveries from this number on were never handed out, and do not count; or nil.
-- released: {number -> true} of others that do not count, or nil.
local function put_back(sequences, untouched, released)
  local payloads, tried = {}, {}
  for i = #sequences, 1, -1 do
    local payload, attempts = look_apart(sequences[i])
    if payload then
      local number = natural(sequences[i] .. '') or 0
      if untouched and number >= untouched or released and released[number] then attempts = attempts - 1 end
      payloads[#payloads + 1] = payload
      if attempts > 0 then tried[#tried + 1] = attempts .. ':' .. digest_of(payload) end
    end
  end
  call('HDEL', APART, '')  -- changes nothing; but a user without the right to HDEL fails here, before the RPUSH
  push('RPUSH', LIST, payloads, 1, #payloads)
  shift(-#payloads)
  push('RPUSH', REDELIVERED, tried, 1, #tried)
  push('HDEL', APART, sequences, 1, #sequences)
  return #payloads
end

-- The same for any deliveries.
local function return_deliveries(sequences, untouched, released)
  if #sequences == 0 then return 0 end
  local oldest, next_number = numbers()
  set_apart(oldest, math.min(next_number, sequences[#sequences] + 1))
  return put_back(sequences, untouched, released)
end

-- The same for all deliveries. LMOVE needs no right to read messages: producers heal, too, and have no such right.
local function return_everything(untouched)
  local oldest, next_number = numbers()
  local tried = {}
  for number = next_number - 1, oldest, -1 do
    local payload = call('LMOVE', INFLIGHT, LIST, 'LEFT', 'RIGHT')
    if not untouched or number < untouched then tried[#tried + 1] = '1:' .. digest_of(payload) end
  end
  push('RPUSH', REDELIVERED, tried, 1, #tried)
  shift(oldest - next_number)
  local sequences = call('HKEYS', APART)
  table.sort(sequences, function(a, b) return (natural(a) or 0) < (natural(b) or 0) end)
  return next_number - oldest + put_back(sequences, untouched)
end

