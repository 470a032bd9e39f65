-- Ask all registrations of a worker to drain, or to tell a stack: each learns that with its next beat.
-- KEYS: the hash of workers
-- ARGV: the worker's id; 'drain' or 'stack'
-- Returns: how many there are that can do that
local workers, head, told = KEYS[1], ARGV[1] .. '/', 0
if call('HLEN', workers) > MOST_WORKERS + 1 then return 0 end
for _, name in ipairs(call('HKEYS', workers)) do
  if string.sub(name, 1, #head) == head then
    local ends, written, letter, record = parts(call('HGET', workers, name))
    if ends and ends > now() and string.find('wWdD', letter, 1, true) then
      if ARGV[2] == 'stack' then letter = string.upper(letter) else letter = shows(letter) and 'D' or 'd' end
      call('HSET', workers, name, ends .. ' ' .. written .. ' ' .. letter .. ' ' .. record)
      told = told + 1
    end
  end
end
return told
