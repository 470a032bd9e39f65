-- Look at a waiting task.
-- KEYS: those of the prelude
-- ARGV: 1 '1' for the newest (leftmost), '0' for the one that is next
-- Returns: {'task', id, parameters} | {'empty', -1, 0}
local function task(id)
  local parameters = id and some_of(id, 'parameters')[1]
  return parameters and {'task', id, parameters}
end
return first_of(PENDING, ARGV[1] == '1', task) or task(first_parked(1)[1]) or {'empty', -1, 0}
