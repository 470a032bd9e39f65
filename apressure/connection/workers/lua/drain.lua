-- Ask all registrations of a worker to drain: each learns that with its next beat.
-- KEYS: the hash of workers
-- ARGV: the worker's id
-- Returns: how many there are that can be drained
local workers, head, told = KEYS[1], ARGV[1] .. '/', 0
if call('HLEN', workers) > MOST_WORKERS + 1 then return 0 end
for _, name in ipairs(call('HKEYS', workers)) do
  if string.sub(name, 1, #head) == head then
    local ends, written, letter, record = parts(call('HGET', workers, name))
    if ends and ends > now() and (letter == 'w' or letter == 'd') then
      call('HSET', workers, name, ends .. ' ' .. written .. ' d ' .. record)
      told = told + 1
    end
  end
end
return told
