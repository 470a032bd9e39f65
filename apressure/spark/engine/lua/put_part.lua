-- Move messages of a write's next part into the queue, as far as there is room (specification: Put). Safe to repeat.
-- KEYS: those of the queue's prelude, 28 the queue's sinks, 29 the write's parts that are not in the queue,
--       30 the part's list
-- ARGV: 1 uid, 2 '1' if the producer role was claimed, 3 the write, 4 number of its batch, 5 the part: "TOKEN messages bytes",
--       6 the most to move in this step, 7 '1' to remember that the batch is complete, since its commit may be repeated
-- Returns: {'ok', messages moved, the next part or ''} | {'full'} | {'room'} (delayed messages take it) |
--          {'gone'} | {'missing'} | {'corrupt', why} |
--          {'closed'} | {'busy', role, holder, milliseconds of its lease or -1}
local SINKS, REMAINING, PART = KEYS[28], KEYS[29], KEYS[30]
local claimed, write = ARGV[2], ARGV[3]
local first = call('LINDEX', REMAINING, 0)
if first ~= ARGV[5] then
  unclaim(PRODUCER, claimed)
  return {'ok', 0, first or ''}
end
local bound, wrong, length, permits = check(PRODUCER)
if wrong then return refuse(wrong, PRODUCER, claimed, '', bound) end
local closed, usual = survey(bound, true)
if not usual then length, permits = call('LLEN', LIST), nil end
local entered, refusal = enter(PRODUCER, claimed, '', usual)
if not entered then return refusal end

ignore_memory_limit()  -- the messages only move
unclaim(PRODUCER, claimed)
call('SET', KEYS[HOLDER + PRODUCER], ARGV[1])
if closed == 1 then return {'closed'} end
local staged, recorded, size = call('LLEN', PART), string.match(first, '^%S+ (%d+) (%d+)$')
if staged == 0 then return {'gone'} end
local room = bound > 0 and places(bound, length, permits) or staged
if room <= 0 then
  if length < bound and delayed() > 0 then return await_room(bound, length, permits) end
  normalise(bound, length, permits)
  return {'full'}
end
local moved, bytes = staged, tonumber(size)
if length == 0 and staged <= room and staged == tonumber(recorded) then
  call('PERSIST', PART)
  call('RENAME', PART, LIST)
else
  local portions
  portions, moved, bytes = pop(math.min(staged, room, tonumber(ARGV[6])), 'RPOP', PART)
  for i = 1, #portions do call('LPUSH', LIST, unpack(portions[i])) end
end
count(PRODUCER, moved, bytes)
normalise(bound, length + moved, permits)
if moved == staged then
  call('LPOP', REMAINING)
  first = call('LINDEX', REMAINING, 0) or ''
  if first == '' and ARGV[7] == '1' then
    call('HDEL', SINKS, write .. ':batch')
    call('HSET', SINKS, write, ARGV[4])
  end
end
return {'ok', moved, first}
