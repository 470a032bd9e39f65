-- Shall operations that wait try their steps again? One look for many queues, so that each wait may last long. It also
-- keeps the watch of clients that watch a queue. What it cannot judge is worth a try: a damaged queue disturbs no other
-- KEYS: those of the prelude that matter here, 14 for each wait: :bound, the messages, :closed, :not_full,
--       producer_lease, consumer_lease, producer_claim, consumer_claim, inflight, apart, turns, watch, delayed, control
-- ARGV: 1... 3 for each wait: why it waits ('full', 'room', 'empty', 'watch', 'turn', 'limited' or 'open'), token of
--       the lease that it waits under or '', place of its client in the line
-- Returns: one number for each wait: milliseconds after which to try | -1 (no reason to try) |
--          -2 (try now: what it waits for is there, so its blocked command must have ended) |
--          -3 (no reason to try, and several clients wait in line)
local waits = #ARGV / 3

-- Is there any of a wait's keys from KEYS[first] to KEYS[last]?
local function any(wait, first, last)
  return call('EXISTS', unpack(KEYS, 14 * wait + first, 14 * wait + last)) > 0
end

-- Is a role in a state that needs no step: free, or under a lease that has not expired?
-- token: of the lease that there must be, or ''; nil if any will do.
local function at_rest(key, token)
  local lease = redis.pcall('HMGET', key, 'token', 'deadline', 'duration', 'earliest')
  if lease.err then return false end
  if not lease[2] then return not lease[1] and (token or '') == '' end
  local left = (natural(lease[2]) or 0) - now()
  if left <= 0 or left > (natural(lease[3]) or LEASE_MS) or token and lease[1] ~= token then return false end
  return lease[1] ~= SHARED or (natural(lease[4]) or 0) > now()
end

local function look(wait, bound, usual, watched)
  local why, token = ARGV[3 * wait + 1], ARGV[3 * wait + 2]
  local k = 14 * wait
  if not bound then return 0 end
  if why == 'open' then return any(wait, 3, 3) and -2 or -1 end
  local later, kept = not usual and redis.pcall('ZCARD', KEYS[k + 13]) or 0, false
  if type(later) ~= 'number' then return 0 end
  if why == 'room' then
    local length = redis.pcall('LLEN', KEYS[k + 2])
    bound = tonumber(bound)
    if type(length) ~= 'number' or not bound or bound <= 0 or length + later < bound or later == 0 then return 0 end
  elseif why == 'full' then
    local length = redis.pcall('LLEN', KEYS[k + 2])
    if not usual and any(wait, 4, 4) then return -2 end
    bound = tonumber(bound)
    if type(length) ~= 'number' or not bound or bound <= 0 or length < bound then return 0 end
  elseif not usual then
    local sought, limits = why == 'turn' and 11 or 2, any(wait, 14, 14)
    if why == 'limited' then
      if not limits then return 0 end
    else
      if any(wait, sought, sought) then return -2 end
      if any(wait, 2, 2) and not limits then return 0 end
    end
    kept = limits and any(wait, 2, 2)  -- also in a closed queue
    if later > 0 and tonumber(call('ZRANGE', KEYS[k + 13], 0, 0, 'WITHSCORES')[2]) <= now() then return 0 end
  end
  if not usual or token ~= '' then
    if any(wait, 3, 3) and not kept or any(wait, 7, 8) then return 0 end
    local producer, consumer = nil, token
    if why == 'full' or why == 'room' then producer, consumer = token, nil end
    if not at_rest(KEYS[k + 5], producer) or not at_rest(KEYS[k + 6], consumer) then return 0 end
    if any(wait, 9, 10) and not any(wait, 6, 6) then return 0 end
  end
  local watches = why == 'watch' or why == 'limited'
  if watches and not watched or not watches and why ~= 'turn' then return -1 end
  local watch, place = redis.pcall('HMGET', KEYS[k + 12], 'id', 'until', 'others'), ARGV[3 * wait + 3]
  if watch.err then return 0 end
  local left, answer = (natural(watch[2]) or 0) - now(), -3
  if watches then
    -- While no other client waits, nothing is written: then the watch expires, which no client needs to know.
    if watch[1] and watch[1] ~= place then return 0 end
    if not watch[1] or (natural(watch[3]) or 0) <= now() then return -1 end
  else
    if not watch[1] or watch[1] == place or left <= 0 or left > WATCH_MS then return 0 end
    if left < LOOK_MS then answer = left end  -- before the next look
  end
  call('HDEL', KEYS[k + 12], '')  -- as in `ignore_memory_limit`
  call('HSET', KEYS[k + 12], watches and 'until' or 'others', now() + WATCH_MS)
  call('PEXPIRE', KEYS[k + 12], 2 * WATCH_MS)
  return answer
end

-- In the usual case three commands know all that matters of all queues.
local bounds, unusual, watches = {}, {}, {}
for wait = 0, waits - 1 do
  local k, why = 14 * wait, ARGV[3 * wait + 1]
  bounds[wait + 1], watches[wait + 1] = KEYS[k + 1], KEYS[k + 12]
  for i = 3, 10 do
    if i ~= 4 or why == 'full' then unusual[#unusual + 1] = KEYS[k + i] end
  end
  if why ~= 'full' and why ~= 'open' then
    unusual[#unusual + 1] = KEYS[k + 2]
    unusual[#unusual + 1] = KEYS[k + 13]
    unusual[#unusual + 1] = KEYS[k + 14]
  end
  if why == 'turn' then unusual[#unusual + 1] = KEYS[k + 11] end
end
bounds = call('MGET', unpack(bounds))
local usual, watched = call('EXISTS', unpack(unusual)) == 0, call('EXISTS', unpack(watches)) > 0
local answers = {}
for wait = 0, waits - 1 do answers[wait + 1] = look(wait, bounds[wait + 1], usual, watched) end
return answers
