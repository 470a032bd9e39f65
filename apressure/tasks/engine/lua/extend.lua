-- Renew leases: they last at least so many milliseconds from now.
-- KEYS: those of the prelude
-- ARGV: 1 milliseconds, 2... claims (id, token)
-- Returns: {'extended', 1 if the queue is paused or held, a letter for each claim: '1' renewed, 'c' renewed, and somebody
--           asks to cancel the task, '2' this very claim has ended it, '0' it is lost}
ignore_memory_limit()
local letters = {}
local until_ = now() + tonumber(ARGV[1])
for i = 2, #ARGV, 2 do
  local id = ARGV[i]
  local task = some_of(id, 'status', 'token', 'cancel_requested', 'reclaimed_node')
  local letter = '0'
  if task[2] == ARGV[i + 1] and not reclaimed(task[4]) then
    if task[1] == 'reserved' or task[1] == 'started' then
      local score = call('ZSCORE', LEASES, id)
      if not score or tonumber(score) < until_ then call('ZADD', LEASES, until_ + 0.0003 * i, id) end
      letter = task[3] and 'c' or '1'
    else
      letter = '2'
    end
  end
  letters[#letters + 1] = letter
end
return {'extended', is_halted(), table.concat(letters)}
