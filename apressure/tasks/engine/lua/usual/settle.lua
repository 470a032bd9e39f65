-- The usual case of settle.lua for one task of ours that starts or completes, with as few commands as possible: it has
-- not been taken from its node, no result has expired, no scheduled task is due, and the queue is neither paused nor
-- limited, and has no keys. In any other case it writes nothing.
-- KEYS, ARGV, Returns: those of settle.lua; nil for any other case
local how, id, token, node, value = ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]
if ARGV[1] == '1' or token == '' or #ARGV ~= 8 + 2 * (tonumber(ARGV[8]) or 0) then return nil end
local STARTED, LEASES, task = KEYS[4], KEYS[9], KEYS[15] .. id

if how == 'start' then
  local is = redis.pcall('HMGET', task, 'status', 'node', 'token', 'reclaimed_node')
  if is[1] ~= 'reserved' or is[2] ~= node or is[3] ~= token or is[4] then return nil end
  local time = call('TIME')
  local stamp = time[1] .. '.' .. string.sub('000000' .. time[2], -6)
  call('ZREM', LEASES, '')  -- the first write must be one that a server which is out of memory does not refuse
  call('PUBLISH', task, 'started')
  call('SADD', STARTED, node .. ' ' .. value .. ' ' .. id)
  call('HSET', task, 'status', 'started', 'pid', value, 'updated', stamp, unpack(ARGV, 9))
  return {'settled', '1'}
elseif how ~= 'complete' or ARGV[8] ~= '0' then
  return nil
end

local is = redis.pcall('HMGET', task, 'status', 'node', 'token', 'pid', 'reclaimed_node')
local started = is[1] == 'started' and is[4]
if not (started or is[1] == 'reserved') or is[2] ~= node or is[3] ~= token or is[5] then return nil end
local COMPLETE, RESERVED = KEYS[6], KEYS[16] .. node
local time, ttl = call('TIME'), tonumber(ARGV[2])
if call('EXISTS', KEYS[3], KEYS[12], KEYS[13], KEYS[21], KEYS[22], KEYS[23]) > 0 then
  if call('EXISTS', KEYS[12], KEYS[13], KEYS[21], KEYS[22], KEYS[23]) > 0 or not not_due(KEYS[3], 1) then return nil end
end
for status, list in pairs({complete = COMPLETE, failed = KEYS[7]}) do
  local oldest = redis.pcall('LRANGE', list, -1, -1)
  if oldest.err then return nil end
  if ttl > 0 and oldest[1] then
    local was = redis.pcall('HMGET', KEYS[15] .. oldest[1], 'status', 'updated')
    local updated = tonumber(was[2] or '')
    local recent = updated and updated > time[1] - ttl + 1 and updated < time[1] + 3000
    if was[1] ~= status or not recent then return nil end
  end
end
-- These keys must be of their types.
call('LLEN', RESERVED)
if started then call('SCARD', STARTED) end
call('PUBLISH', task, 'complete')  -- before the first write: a user may lack the right
call('ZREM', LEASES, id)
call('LPUSH', COMPLETE, id)
call('LREM', RESERVED, -1, id)
if started then call('SREM', STARTED, node .. ' ' .. started .. ' ' .. id) end
local stamp = time[1] .. '.' .. string.sub('000000' .. time[2], -6)
call('HSET', task, 'status', 'complete', 'result', value, 'updated', stamp)
return {'settled', '1'}
