-- Functions that the usual cases of members share, who have the consumer role together. KEYS: those of ../prelude
local WATCH_MS = 4500  -- as in ../prelude/01_keys.lua

-- Are all of these texts natural numbers?
local function are_natural(...)
  for i = 1, select('#', ...) do
    local text = select(i, ...)
    if not text or #text > 13 or not string.find(text, '^%d+$') then return false end
  end
  return true
end

-- The bound of a calm queue, in which a member has to look at nothing but its own: it is open, with no pause, limit or
-- claim, no delivery but those of members, nothing that was delivered before, and nothing that is due.
-- Returns: the bound, a text | nil, if the queue is another one, or its numbers are not natural
local function calm_bound()
  local call = redis.call
  local BOUND, COUNT, BYTES, FREE, CLOSED = KEYS[2], KEYS[9], KEYS[10], KEYS[6], KEYS[12]
  local PRODUCER_LEASE, PRODUCER_CLAIM, CONSUMER_CLAIM = KEYS[13], KEYS[15], KEYS[16]
  local INFLIGHT, APART, REDELIVERED, CONTROL = KEYS[19], KEYS[20], KEYS[21], KEYS[22]
  local DELAYED, POPPED, ROOM = KEYS[23], KEYS[24], KEYS[26]

  local texts = call('MGET', BOUND, COUNT, BYTES)
  local bound = texts[1]
  if not are_natural(bound, texts[2], texts[3]) then return nil end
  if string.find(bound .. ' ' .. texts[2] .. ' ' .. texts[3], '%f[%d]0%d') then return nil end
  local unusual = call('EXISTS', FREE, CLOSED, PRODUCER_LEASE, PRODUCER_CLAIM, CONSUMER_CLAIM, INFLIGHT, REDELIVERED,
                       CONTROL, DELAYED, POPPED)
  if unusual > 0 then
    if unusual > 1 or call('EXISTS', DELAYED) == 0 or not not_due(DELAYED, 1000) then return nil end
    if bound ~= '0' and redis.pcall('LLEN', ROOM) ~= 1 then return nil end  -- somebody may wait for it
  end
  call('HLEN', APART)  -- it must be of its type
  return bound
end

-- A member, where it is one, and no member can be dead.
-- milliseconds: of the lease that it has from now on; nil where it keeps the one that it has
-- Returns: {deadline, duration, since, sequence, first, count, ranges, uid, now = the time, next = that of the lease,
--          earliest = until when nobody is dead, lease = fields of the lease to write} | nil
local function live_member(token, milliseconds)
  local CONSUMER_LEASE = KEYS[14]
  local member = 'member:' .. token
  local lease = redis.call('HMGET', CONSUMER_LEASE, 'token', 'next', 'deadline', 'duration', 'earliest', member)
  if lease[1] ~= 'shared:1' or not are_natural(lease[2], lease[3], lease[4], lease[5]) then return nil end
  local me = {string.match(lease[6] or '', '^(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):([%d%-]*):(.*)$')}
  if not are_natural(unpack(me, 1, 6)) then return nil end
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local deadline, duration, earliest = tonumber(lease[3]), tonumber(lease[4]), tonumber(lease[5])
  if deadline <= now or deadline > now + duration then return nil end
  me.now, me.next, me.lease = now, tonumber(lease[2]), {}
  if milliseconds then
    me[1], me[2] = now + milliseconds, milliseconds
    deadline, earliest = math.max(deadline, me[1]), math.min(earliest, me[1])
    duration = math.max(duration, milliseconds)
    me.lease = {'deadline', deadline, 'duration', duration, 'earliest', earliest}
  end
  if earliest <= now or earliest > now + duration then return nil end
  me.earliest = earliest
  return me
end

-- Write what a member is from now on, and those fields of the lease.
local function write_lease(token, me)
  local CONSUMER_LEASE = KEYS[14]
  redis.call('HSET', CONSUMER_LEASE, 'member:' .. token, table.concat(me, ':', 1, 8), unpack(me.lease))
end
