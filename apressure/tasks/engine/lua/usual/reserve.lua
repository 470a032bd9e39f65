-- The usual case of reserve.lua for up to 100 tasks, or for none, with as few commands as possible: the queue is neither
-- closed, paused nor limited, and has no keys; no lease has ended, no scheduled task is due, and the tasks do not expire
-- and have no fields of an earlier attempt but those that the step replaces. In any other case it writes nothing.
-- KEYS, ARGV, Returns: those of reserve.lua; nil for any other case
local most, limit = tonumber(ARGV[3]), tonumber(ARGV[7])
if ARGV[2] == '1' or most < 1 or most > 100 then return nil end
local PENDING, SCHEDULED, LEASES, BOUND, OP, TASK = KEYS[2], KEYS[3], KEYS[9], KEYS[11], KEYS[14], KEYS[15]
local RESERVED = KEYS[16] .. ARGV[6]

local ids = redis.pcall('LRANGE', PENDING, -most, -1)
if ids.err then return nil end  -- of a wrong type: the step says what is wrong
local values = call('MGET', OP, BOUND)
local bound = values[2]
if repeated(values[1], ARGV[1]) or (not bound and ARGV[9] == '1') then return nil end
if bound and (#bound > 13 or not string.find(bound, '^%d+$')) then return nil end
if call('EXISTS', SCHEDULED, KEYS[12], KEYS[13], KEYS[21], KEYS[22], KEYS[23]) > 0 then
  if call('EXISTS', KEYS[12], KEYS[13], KEYS[21], KEYS[22], KEYS[23]) > 0 or not not_due(SCHEDULED, 1) then return nil end
end
local time = call('TIME')
local moment = time[1] * 1000 + math.floor(time[2] / 1000)
if call('ZRANGEBYSCORE', LEASES, '-inf', moment, 'LIMIT', 0, 1)[1] then return nil end
call('LLEN', RESERVED)  -- it must be of its type
if not ids[1] then
  local lease = call('ZRANGE', LEASES, 0, 0, 'WITHSCORES')[2]
  local scheduled = call('ZRANGE', SCHEDULED, 0, 0, 'WITHSCORES')[2]
  local again = lease and math.max(1, math.ceil(lease - moment)) or -1
  if scheduled then
    local left = math.ceil(1000 * math.min(scheduled - time[1] - time[2] / 1000000, 1000000000))
    again = again < 0 and left or math.min(again, left)
  end
  return {'empty', again, bound and 1 or 0}
end

-- What the step replaces; and what it removes, or has to look at.
local REPLACED = {node = true, updated = true, token = true, returned = true}
REPLACED.max_attempts, REPLACED.on_orphan = limit > 0, ARGV[8] == 'fail'
local UNUSUAL = ' pid process_started progress progress_message result reclaimed_node max_attempts on_orphan watched expires '
local ends, bytes, seen, found, reserved, leases = moment + ARGV[4], 0, {}, {}, {}, {}
for i = #ids, 1, -1 do
  local id = ids[i]
  local fields = redis.pcall('HGETALL', TASK .. id)
  local kept, n, status, attempts = {}, 0, nil, '0'
  for j = 1, #fields, 2 do
    local name, value = fields[j], fields[j + 1]
    if name == 'status' then
      status = value
    elseif name == 'attempts' then
      attempts = value
    elseif not REPLACED[name] then
      if name == 'parameters' then
        bytes = bytes + #value
      elseif string.find(UNUSUAL, ' ' .. name .. ' ', 1, true) then
        return nil
      end
      kept[n + 1], kept[n + 2], n = name, value, n + 2
    end
  end
  if status ~= 'pending' or seen[id] or #attempts > 13 or not string.find(attempts, '^%d+$') then return nil end
  attempts = attempts + 1
  if limit > 0 and attempts > limit then return nil end
  kept[n + 1], kept[n + 2] = 'attempts', tostring(attempts)
  local count = #found + 1
  -- A fraction keeps the order of tasks that were reserved together.
  seen[id], found[count], reserved[count] = true, {id, kept}, id
  leases[2 * count - 1], leases[2 * count] = ends + 0.0003 * count, id
  if bytes >= 1048576 then break end
end

local stamp = time[1] .. '.' .. string.sub('000000' .. time[2], -6)
local claim = {'status', 'reserved', 'node', ARGV[6], 'updated', stamp, 'token', ARGV[5]}
if limit > 0 then claim[9], claim[10] = 'max_attempts', ARGV[7] end
if ARGV[8] == 'fail' then claim[#claim + 1], claim[#claim + 2] = 'on_orphan', ARGV[8] end
call('LTRIM', PENDING, 0, -#found - 1)  -- first: a server that is out of memory does not refuse it
call('LPUSH', RESERVED, unpack(reserved))
call('ZADD', LEASES, unpack(leases))
for i = 1, #found do
  local kept = found[i][2]
  call('HSET', TASK .. reserved[i], 'attempts', kept[#kept], unpack(claim))
end
call('SET', OP, ARGV[1] .. ':' .. table.concat(reserved, ' '), 'PX', 300000)
if bound and bound ~= '0' then call('PUBLISH', KEYS[18], 'room') end
return {'tasks', found, 0, 0, claim}
