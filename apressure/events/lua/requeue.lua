-- Move dead letters back to the end of the queue, the oldest first. One whose id is in use again stays.
-- KEYS: those of the prelude
-- ARGV: 1 sequence, 2 '1' if this repeats a step, 3 how many at most, 4 '1' if the queue must have been created
-- Returns: {'moved', 'number that were moved:number that were looked at'} (looked at fewer: the queue is full) |
--          {'closed'} | {'missing'} | {'corrupt', why}
local before = recall(ARGV[1], ARGV[2])
if before then return {'moved', before} end
local bound, created = state(ARGV[4] == '1')
if not bound or is_closed() then
  if not bound and created[1] == 'corrupt' then return created end
  wake(ROOM)  -- the next one that waits for room has to learn that, too
  return bound and {'closed'} or created
end
if not created then check_types() end
local room = bound > 0 and math.max(0, bound - call('LLEN', UNCLAIMED)) or CHUNK
local entries = call('LRANGE', DEAD, -math.min(tonumber(ARGV[3]), CHUNK), -1)
local ids, pairs_, kept, seen, looked = {}, {}, {}, {}, 0
for i = #entries, 1, -1 do
  if #ids == room then break end
  looked = looked + 1
  local id, from = unpack_text(entries[i], 1)
  if not id or seen[id] or call('HEXISTS', ITEMS, id) == 1 then
    kept[#kept + 1] = entries[i]
  else
    seen[id] = true
    ids[#ids + 1] = id
    pairs_[#pairs_ + 1], pairs_[#pairs_ + 2] = id, string.sub(entries[i], from)
  end
end
if #ids < #entries and #ids == room then call('SET', PUTTERS, 1, 'PX', WATCH_MS) end
if looked > 0 then
  respect_memory_limit()
  publish(ids)
  push('HSET', ITEMS, pairs_)
  push('LPUSH', UNCLAIMED, ids)
  call('LTRIM', DEAD, 0, -looked - 1)
  push('LPUSH', DEAD, kept)
  record(ARGV[1], #ids .. ':' .. looked)
end
return {'moved', #ids .. ':' .. looked}
