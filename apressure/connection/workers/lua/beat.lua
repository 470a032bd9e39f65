-- Write a registration, and remove those that have expired. What was asked to drain is kept for longer: its program may
-- stand still, and has not seen that yet.
-- KEYS: the hash of workers
-- ARGV: the registration's name, its letter, its record, for how many milliseconds it counts
-- Returns: 1 if somebody has asked it to drain, and 2 more if somebody wants its stack; -1 if the queue has too many
local workers, name, letter, record, lasts = KEYS[1], ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local count = call('HLEN', workers)
if count > MOST_WORKERS + 1 then  -- others have filled it: what works registers again
  call('DEL', workers)
  count = 0
end
if (natural(call('HGET', workers, '')) or 0) <= now() then
  for _, other in ipairs(call('HKEYS', workers)) do
    if other ~= '' then
      local ends, _, was = parts(call('HGET', workers, other))
      if (ends or 0) + ((was == 'd' or was == 'D') and KEY_MS or 0) <= now() then call('HDEL', workers, other) end
    end
  end
  call('HSET', workers, '', now() + LOOK_MS)
  count = call('HLEN', workers)
end
local kept = call('HGET', workers, name)
if not kept and count > (letter == 'p' and MOST_WITH_PRODUCER or MOST_WORKERS) then return -1 end
local _, _, before = parts(kept)
if (before == 'd' or before == 'D') and letter == 'w' then letter = 'd' end
call('HSET', workers, name, now() + lasts .. ' ' .. now() .. ' ' .. letter .. ' ' .. record)
call('PEXPIRE', workers, KEY_MS)
return (letter == 'd' and 1 or 0) + (shows(before) and 2 or 0)
