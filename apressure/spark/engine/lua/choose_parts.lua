-- Decide which parts a write consists of: those of the first call. Safe to repeat.
-- KEYS: those of the queue's prelude, 28 the queue's sinks, 29 the write's parts that are not in the queue,
--       then the lists of the parts
-- ARGV: 1 the write (a query's id), 2 number of its batch, 3 milliseconds after which the parts expire, or 0 for a write
--       that may be repeated, 4... for each part "TOKEN messages bytes"
-- Returns: {'ok', the first part} | {'done'} (the write is in the queue already, or empty) | {'gone', index of a part} |
--          {'other', number of the batch that is not complete} | {'missing'} | {'corrupt', why} | {'closed'}
local SINKS, REMAINING = KEYS[28], KEYS[29]
local write, batch = ARGV[1], ARGV[2]
local last = tonumber(call('HGET', SINKS, write) or -1)
if last >= tonumber(batch) then
  call('UNLINK', REMAINING, unpack(KEYS, 30))  -- (a complete batch has no list)
  return {'done'}
end
local todo = call('LRANGE', REMAINING, 0, -1)
if #todo > 0 then
  local pending = call('HGET', SINKS, write .. ':batch')
  if pending and pending ~= batch then return {'other', tonumber(pending)} end
  local chosen = {}
  for i = 1, #todo do chosen[todo[i]] = true end
  for i = 4, #ARGV do
    if not chosen[ARGV[i]] then call('UNLINK', KEYS[26 + i]) end
  end
  return {'ok', todo[1]}
end
if #ARGV == 3 then return {'done'} end
local bound, wrong = check(PRODUCER)
if wrong then return wrong end
if call('EXISTS', CLOSED) == 1 then return {'closed'} end
for i = 4, #ARGV do
  if call('LLEN', KEYS[26 + i]) ~= tonumber(string.match(ARGV[i], '^%S+ (%d+) ')) then return {'gone', i - 3} end
end
if ARGV[3] == '0' then call('HSET', SINKS, write .. ':batch', batch) end
for i = 4, #ARGV do
  call('RPUSH', REMAINING, ARGV[i])
  if ARGV[3] == '0' then call('PERSIST', KEYS[26 + i]) else call('PEXPIRE', KEYS[26 + i], ARGV[3]) end
end
if ARGV[3] ~= '0' then call('PEXPIRE', REMAINING, ARGV[3]) end
return {'ok', ARGV[4]}
