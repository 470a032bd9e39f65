-- Tasks that were completed for a caller who was cancelled wait again, first in line, as if nobody had reserved them.
-- KEYS: those of the prelude
-- ARGV: 1... for each task, the newest first: id; the token of the claim that completed it
-- Returns: {'settled', a letter for each task: '1' it waits again, '0' it was deleted, or waits already}
-- The token makes a repeat safe: a task that waits has none.
call('LLEN', PENDING)
call('LLEN', COMPLETE)
check_lines_types()
ignore_memory_limit()
local letters = {}
for i = 1, #ARGV, 2 do
  local id = ARGV[i]
  local task = some_of(id, 'status', 'token', 'attempts')
  if task[1] == 'complete' and task[2] == ARGV[i + 1] then
    call('PUBLISH', TASK .. id, 'pending')
    call('LREM', COMPLETE, 1, id)
    call('HSET', TASK .. id, 'status', 'pending', 'updated', stamp(), 'attempts', math.max(0, (natural(task[3]) or 0) - 1))
    call('HDEL', TASK .. id, 'token', 'result', 'reclaimed_node')
    local key = has_keys() and keys_of({id}, {}, key_terms().steps, 1)[1]
    if key then park_first(id, key) else call('RPUSH', PENDING, id) end
    letters[#letters + 1] = '1'
  else
    letters[#letters + 1] = '0'
  end
end
tell()
show_next()
return {'settled', table.concat(letters)}
