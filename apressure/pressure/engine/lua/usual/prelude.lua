-- What the usual cases share. KEYS: those of ../prelude
local LIST, TURNS, WATCH = KEYS[1], KEYS[28], KEYS[29]
local WATCH_MS = 4500  -- as in ../prelude/01_keys.lua

-- Are these the texts of a bound and of two statistics, as the queue writes natural numbers?
local function are_plain(bound, count, bytes)
  if not (bound and count and bytes) or math.max(#bound, #count, #bytes) > 18 then return false end
  local numbers = ' ' .. bound .. ' ' .. count .. ' ' .. bytes
  return string.find(numbers, '^ %d+ %d+ %d+$') and not string.find(numbers, ' 0%d')
end

-- So many things are unusual in this state: are these only messages that are delayed, none of which is due? And does
-- nobody wait for the room that they take?
-- Returns: how many they are | nil
local function only_delayed(unusual, bound)
  local DELAYED, ROOM = KEYS[23], KEYS[26]
  if unusual > 1 or call('EXISTS', DELAYED) == 0 then return nil end
  local later = not_due(DELAYED, 1000)
  return later and (bound == '0' or redis.pcall('LLEN', ROOM) == 1) and later or nil
end

-- The bound of a calm queue, in which a member has to look at nothing but its own: it is open, with no pause, limit or
-- claim, no delivery but those of members, nothing that was delivered before, and nothing that is due.
-- Returns: the bound, a text | nil, if the queue is another one, or its numbers are not natural
local function calm_bound()
  local BOUND, COUNT, BYTES, FREE, CLOSED = KEYS[2], KEYS[9], KEYS[10], KEYS[6], KEYS[12]
  local PRODUCER_LEASE, PRODUCER_CLAIM, CONSUMER_CLAIM = KEYS[13], KEYS[15], KEYS[16]
  local INFLIGHT, APART, REDELIVERED, CONTROL = KEYS[19], KEYS[20], KEYS[21], KEYS[22]
  local DELAYED, POPPED = KEYS[23], KEYS[24]

  local texts = call('MGET', BOUND, COUNT, BYTES)
  local bound = texts[1]
  if not are_plain(bound, texts[2], texts[3]) then return nil end
  local unusual = call('EXISTS', FREE, CLOSED, PRODUCER_LEASE, PRODUCER_CLAIM, CONSUMER_CLAIM, INFLIGHT, REDELIVERED,
                       CONTROL, DELAYED, POPPED)
  if unusual > 0 and not only_delayed(unusual, bound) then return nil end
  call('HLEN', APART)  -- it must be of its type
  return bound
end

-- Does :not_full hold what it should: a token while there is room, and none otherwise?
local function has_right_permit(bound)
  local NOT_FULL = KEYS[11]
  local room = bound == '0' or call('LLEN', LIST) < tonumber(bound)
  return call('LLEN', NOT_FULL) == (room and 1 or 0)
end

-- Messages were taken: have it hold that.
-- length: of the queue from now on | permits: how many tokens there were, none or one
local function set_permit(bound, length, permits)
  local NOT_FULL = KEYS[11]
  if bound == '0' or length < tonumber(bound) then
    if permits == 0 then call('LPUSH', NOT_FULL, 1) end
  elseif permits > 0 then
    call('DEL', NOT_FULL)
  end
end

-- A member, where it is one, and no member can be dead.
-- milliseconds: of the lease that it has from now on; nil where it keeps the one that it has
-- Returns: {deadline, duration, since, sequence, first, count, ranges, uid, next = that of the lease, earliest = until
--          when nobody is dead, lease = fields of the lease to write} | nil
local function live_member(token, milliseconds)
  local CONSUMER_LEASE = KEYS[14]
  local member = 'member:' .. token
  local lease = call('HMGET', CONSUMER_LEASE, 'token', 'next', 'deadline', 'duration', 'earliest', member)
  local deadline, duration, earliest = natural(lease[3]), natural(lease[4]), natural(lease[5])
  local me = {string.match(lease[6] or '', '^(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):([%d%-]*):(.*)$')}
  me.next, me.lease = natural(lease[2]), {}
  if lease[1] ~= 'shared:1' or not (me.next and deadline and duration and earliest) then return nil end
  for i = 1, 6 do
    if not natural(me[i]) then return nil end
  end
  if deadline <= now() or deadline > now() + duration then return nil end
  if milliseconds then
    me[1], me[2] = now() + milliseconds, milliseconds
    deadline, earliest = math.max(deadline, me[1]), math.min(earliest, me[1])
    duration = math.max(duration, milliseconds)
    me.lease = {'deadline', deadline, 'duration', duration, 'earliest', earliest}
  end
  if earliest <= now() or earliest > now() + duration then return nil end
  me.earliest = earliest
  return me
end

-- Write what a member is from now on, and those fields of the lease.
local function write_lease(token, me)
  local CONSUMER_LEASE = KEYS[14]
  call('HSET', CONSUMER_LEASE, 'member:' .. token, table.concat(me, ':', 1, 8), unpack(me.lease))
end
