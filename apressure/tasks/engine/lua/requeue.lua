-- Enqueue failed tasks again, the oldest first: last in line, with new attempts.
-- KEYS: those of the prelude
-- ARGV: 1 sequence, 2 '1' if this repeats a step, 3 how many at most, 4 '1' if the queue must have been created
-- Returns: {'moved', 'number that were moved:number that were looked at'} (looked at fewer: the queue is full) |
--          {'closed'} | {'missing'} | {'corrupt', why}
local before = recall(ARGV[1], ARGV[2])
if before then return {'moved', before} end
local bound, refused = state_to_revive(ARGV[4] == '1')
if not bound then return refused end
local most = math.min(tonumber(ARGV[3]), CHUNK)
local room = bound > 0 and math.max(0, bound - occupied()) or most
local ids = call('LRANGE', FAILED, -most, -1)
local moved, looked = 0, 0
for i = #ids, 1, -1 do
  if moved == room then break end
  if looked == 0 then respect_memory_limit() end
  looked = looked + 1
  if some_of(ids[i], 'status')[1] == 'failed' then
    revive(ids[i])
    moved = moved + 1
  end
end
if looked > 0 then
  call('LTRIM', FAILED, 0, -looked - 1)
  record(ARGV[1], moved .. ':' .. looked)
end
return {'moved', moved .. ':' .. looked}
