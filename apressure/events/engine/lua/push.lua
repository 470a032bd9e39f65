-- Push as many events as there is room for, in order (specification: QLPUSH, QRPUSH).
-- KEYS: those of the prelude
-- ARGV: 1 sequence, 2 '1' if this repeats a step, 3 '1' to push them to the front, 4 '1' to ignore the bound, '2' to
--       give back what was popped, also to a closed queue, 5 '1' if the queue must have been created, 6... events (id, contents)
-- Returns: {'pushed', a letter for each event that was looked at: 'k' pushed, 'd' its id is in the queue already}
--          (fewer letters than events: the queue is full) | {'missing'} | {'corrupt', why} | {'closed'}
local before = recall(ARGV[1], ARGV[2])
if before then return {'pushed', before} end
local bound, created = state(ARGV[5] == '1')
if not bound or (is_closed() and ARGV[4] ~= '2') then
  if not bound and created[1] == 'corrupt' then return created end
  wake(ROOM)  -- the next one that waits for room has to learn that, too
  return bound and {'closed'} or created
end
if not created then check_types() end
local events = (#ARGV - 5) / 2
local room = events
if bound > 0 and ARGV[4] == '0' then room = math.max(0, bound - occupied()) end
local letters, ids, pairs_, seen = {}, {}, {}, {}
for i = 6, 5 + 2 * events, 2 do
  local id = ARGV[i]
  if seen[id] or is_known(id) then
    letters[#letters + 1] = 'd'
  elseif #ids < room then
    letters[#letters + 1] = 'k'
    seen[id] = true
    ids[#ids + 1] = id
    pairs_[#pairs_ + 1], pairs_[#pairs_ + 2] = id, ARGV[i + 1]
  else
    call('SET', PUTTERS, 1, 'PX', WATCH_MS)
    break
  end
end
if #ids > 0 then
  respect_memory_limit()
  publish(ids)
  forget_attempts(ids)
  push('HSET', ITEMS, pairs_)
  push(ARGV[3] == '1' and 'RPUSH' or 'LPUSH', UNCLAIMED, ids)
end
if #letters > 0 then record(ARGV[1], table.concat(letters)) end
if #ids > 0 then promote() end
wake_putters(bound)
return {'pushed', table.concat(letters)}
