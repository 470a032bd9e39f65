-- Clients of ours can share the consumer role. Its lease then has the token SHARED, and a record of each member. All
-- deliveries are APART; their numbers are given to the members in ranges. The lease's `deadline` is the latest one of
-- the members' deadlines, and no member's deadline is before `earliest`.

-- A member from its record: 'deadline:duration:since:sequence:first:count:ranges:uid' with the sequence number of its
-- latest receive, which brought `count` deliveries from the number `first` on, and all ranges that it has, ascending
-- ('3-7 12-12').
-- Returns: {deadline, duration, since, sequence, first, count, ranges, uid}; nil where the record cannot be read
local function member_of(text)
  local deadline, duration, since, sequence, first, size, list, uid =
      string.match(text or '', '^(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):([%d %-]*):(.*)$')
  local member = {deadline = natural(deadline), duration = natural(duration), since = natural(since),
                  sequence = natural(sequence), first = natural(first), count = natural(size), ranges = {}, uid = uid}
  local behind = -1
  for from, to in string.gmatch(list or '', '(%d+)%-(%d+)') do
    local range = {natural(from), natural(to)}
    if not (range[1] and range[2]) or range[1] <= behind or range[2] < range[1] then return nil end
    behind = range[2]
    member.ranges[#member.ranges + 1] = range
  end
  local times = member.deadline and member.duration and member.since
  return times and member.sequence and member.first and member.count and member or nil
end

local function write_member(token, member)
  local ranges = {}
  for i = 1, #member.ranges do ranges[i] = member.ranges[i][1] .. '-' .. member.ranges[i][2] end
  call('HSET', KEYS[LEASE + CONSUMER], MEMBER .. token, table.concat({
    member.deadline, member.duration, member.since, member.sequence, member.first, member.count,
    table.concat(ranges, ' '), member.uid}, ':'))
end

-- The answer to a client that is no member: any member that finds the queue deleted ends the lease of all.
local function no_member()
  return {call('EXISTS', BOUND) == 1 and 'lost' or 'missing'}
end

-- Renew the lease of a member, which the caller writes.
local function renew_member(member, milliseconds)
  member.deadline, member.duration = now() + milliseconds, tonumber(milliseconds)
  local lease = call('HMGET', KEYS[LEASE + CONSUMER], 'deadline', 'duration', 'earliest')
  local latest = math.max(natural(lease[1]) or 0, member.deadline)
  local earliest = math.min(natural(lease[3]) or 0, member.deadline)
  local longest = math.max(natural(lease[2]) or 0, member.duration)
  call('HSET', KEYS[LEASE + CONSUMER], 'deadline', latest, 'duration', longest, 'earliest', earliest)
end

-- Does a member have all of these deliveries? A server that took over may have given the numbers to another one.
local function owns(member, first, last)
  for i = 1, #member.ranges do
    if member.ranges[i][1] <= first and last <= member.ranges[i][2] then return true end
  end
  return false
end

-- Returns: those of the acknowledged ranges (first, last, bytes) in values[from..to] that a member has
local function owned_acks(member, values, from, to)
  local acks = {}
  for i = from, to, 3 do
    if owns(member, tonumber(values[i]), tonumber(values[i + 1])) then
      for j = i, i + 2 do acks[#acks + 1] = values[j] end
    end
  end
  return acks
end

-- The ranges whose first and last numbers are in values[from..to], `step` apart. Returns: them, ascending
local function ranges_in(values, from, to, step)
  local found = {}
  for i = from, to, step do found[#found + 1] = {tonumber(values[i]), tonumber(values[i + 1])} end
  table.sort(found, function(a, b) return a[1] < b[1] end)
  return found
end

-- Returns: the parts of ranges that others have too | those that others do not have. Both arguments are ascending.
local function split(ranges, others)
  local inside, outside, k = {}, {}, 1
  for i = 1, #ranges do
    local first, last = ranges[i][1], ranges[i][2]
    while first <= last do
      while others[k] and others[k][2] < first do k = k + 1 end
      local other = others[k]
      local within = other and other[1] <= first
      local to = not other and last or math.min(last, within and other[2] or other[1] - 1)
      local part = within and inside or outside
      part[#part + 1] = {first, to}
      first = to + 1
    end
  end
  return inside, outside
end

-- Returns: {token -> member, or false where its record cannot be read}
local function members()
  local fields, all = {}, {}
  for _, field in ipairs(call('HKEYS', KEYS[LEASE + CONSUMER])) do
    if string.sub(field, 1, #MEMBER) == MEMBER then fields[#fields + 1] = field end
  end
  for i = 1, #fields, CHUNK do
    local last = math.min(i + CHUNK - 1, #fields)
    local records = call('HMGET', KEYS[LEASE + CONSUMER], unpack(fields, i, last))
    for j = i, last do all[string.sub(fields[j], #MEMBER + 1)] = member_of(records[j - i + 1]) or false end
  end
  return all
end

-- How many members there are, as long as no other program writes fields of its own.
local function member_count()
  return math.max(1, call('HLEN', KEYS[LEASE + CONSUMER]) - 8)
end

-- How many messages a member may take where the queue has a limit of how many are in flight, so that others get some,
-- too. While another client waits for messages, no member takes more than its share; but its turn brings it one.
-- ranges: what it has
local function share_of(allowed, place, ranges)
  if not allowed.concurrency then return math.huge end
  local watch = watch_state()
  local watched = watch[1] and watch[1] ~= place and (natural(watch[2]) or 0) > now()
  if not watched and (natural(watch[3]) or 0) <= now() then return math.huge end
  local share = math.ceil(allowed.concurrency / member_count())
  for i = 1, #ranges do share = share - (ranges[i][2] - ranges[i][1] + 1) end
  return math.max(watched and 0 or 1, share)
end

-- What deliveries of these ranges are APART still, as sorted numbers.
-- others: members; what they have is left out; or nil.
local function numbers_in(ranges, others)
  local numbers, found, span = {}, {}, 0
  for i = 1, #ranges do span = span + ranges[i][2] - ranges[i][1] + 1 end
  if span > CHUNK + call('HLEN', APART) then  -- another program wrote that range
    for _, field in ipairs(call('HKEYS', APART)) do
      local number = natural(field)
      if number and owns({ranges = ranges}, number, number) then numbers[#numbers + 1] = number end
    end
  else
    for i = 1, #ranges do
      for number = ranges[i][1], ranges[i][2] do numbers[#numbers + 1] = number end
    end
  end
  for i = 1, #numbers, CHUNK do
    local last = math.min(i + CHUNK - 1, #numbers)
    local entries = call('HMGET', APART, unpack(numbers, i, last))
    for j = i, last do
      local free = entries[j - i + 1]
      for k = 1, free and others and #others or 0 do free = free and not owns(others[k], numbers[j], numbers[j]) end
      if free then found[#found + 1] = numbers[j] end
    end
  end
  table.sort(found)
  return found
end

-- Return the deliveries that none of these members has: another program wrote them, or the record of who has them.
-- Returns: how many
local function return_orphans(alive)
  local returned, orphans = call('LLEN', INFLIGHT), {}
  for _ = 1, returned do call('LMOVE', INFLIGHT, LIST, 'LEFT', 'RIGHT') end
  shift(-returned)
  for _, field in ipairs(call('HKEYS', APART)) do
    local owned, number = false, natural(field)
    for i = 1, number and #alive or 0 do owned = owned or owns(alive[i], number, number) end
    if not owned then orphans[#orphans + 1] = field end
  end
  table.sort(orphans, function(a, b) return (natural(a) or 0) < (natural(b) or 0) end)
  return returned + put_back(orphans)
end

-- Remove members whose lease has run out, and return what they have, first in line. Without members the lease ends.
-- gone: the uid, or the token, of members that have to go in any case, or nil.
-- Returns: how many were removed | how many deliveries were returned | the members that remain
local function heal_members(bound, gone)
  ignore_memory_limit()
  call('LLEN', REDELIVERED)  -- raises an error where it is of a wrong type
  local all = members()
  local ranges, dead, alive, latest, earliest, longest = {}, {}, {}, 0, nil, 0
  local readable = natural(call('HGET', KEYS[LEASE + CONSUMER], 'next'))  -- otherwise nobody can receive anything
  local complete = true  -- every record says what its member has
  for token, member in pairs(all) do
    local stays = readable and member and member.uid ~= gone and token ~= gone
    local left = stays and math.min(member.deadline - now(), member.duration) or 0
    if left > 0 and member.deadline - now() > left then  -- the server's clock was set back
      member.deadline = now() + left
      write_member(token, member)
    end
    if left > 0 then
      alive[#alive + 1] = member
      latest, earliest = math.max(latest, now() + left), math.min(earliest or now() + left, now() + left)
      longest = math.max(longest, member.duration)
    else
      dead[#dead + 1] = MEMBER .. token
      complete = complete and member
      for i = 1, member and #member.ranges or 0 do ranges[#ranges + 1] = member.ranges[i] end
    end
  end
  local returned
  if #alive == 0 then
    returned = return_everything()
    call('DEL', KEYS[LEASE + CONSUMER])
    release(CONSUMER)
  else
    returned = complete and put_back(numbers_in(ranges, alive)) or return_orphans(alive)
    push('HDEL', KEYS[LEASE + CONSUMER], dead, 1, #dead)
    call('HSET', KEYS[LEASE + CONSUMER], 'uid', alive[1].uid, 'deadline', latest, 'earliest', earliest,
         'duration', longest)
    call('SET', KEYS[HOLDER + CONSUMER], alive[1].uid)
  end
  normalise(bound)
  return #dead, returned, alive
end

-- The same, when it is time for it. For steps that have TURNS: clients that wait in line learn of what came back.
local function heal_members_in_time(bound)
  local lease = call('HMGET', KEYS[LEASE + CONSUMER], 'earliest', 'duration', 'next')
  local left = (natural(lease[1]) or 0) - now()
  if left > 0 and left <= (natural(lease[2]) or 0) and natural(lease[3]) then return end
  local removed, returned = heal_members(bound)
  if returned > 0 or removed > 0 then wake(TURNS, math.max(1, member_count())) end
end

