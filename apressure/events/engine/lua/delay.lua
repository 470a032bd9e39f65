-- Put as many events for later as there is room for, in order.
-- KEYS: those of the prelude
-- ARGV: 1 sequence, 2 '1' if this repeats a step, 3 '1' if the queue must have been created, 4... events (id, contents,
--       when it is due, as `due_at` reads it)
-- Returns: those of push.lua
local before = recall(ARGV[1], ARGV[2])
if before then return {'pushed', before} end
local bound, created = state(ARGV[3] == '1')
if not bound or is_closed() then
  if not bound and created[1] == 'corrupt' then return created end
  wake(ROOM)  -- the next one that waits for room has to learn that, too
  return bound and {'closed'} or created
end
if not created then check_types() end
local room = bound > 0 and math.max(0, bound - occupied()) or math.huge
local letters, ids, scores, contents, seen = {}, {}, {}, {}, {}
for i = 4, #ARGV, 3 do
  local id = ARGV[i]
  if seen[id] or is_known(id) then
    letters[#letters + 1] = 'd'
  elseif #ids < room then
    letters[#letters + 1] = 'k'
    seen[id] = true
    ids[#ids + 1] = id
    -- A fraction keeps the order of events that were put together.
    scores[#scores + 1], scores[#scores + 2] = due_at(ARGV[i + 2]) + 0.0003 * #ids, id
    contents[#contents + 1], contents[#contents + 2] = id, ARGV[i + 1]
  else
    call('SET', PUTTERS, 1, 'PX', WATCH_MS)
    break
  end
end
if #ids > 0 then
  respect_memory_limit()
  forget_attempts(ids)
  delay(scores, contents)
  promote()
end
if #letters > 0 then record(ARGV[1], table.concat(letters)) end
wake_putters(bound)
return {'pushed', table.concat(letters)}
