-- Look at a waiting task.
-- KEYS: those of the prelude
-- ARGV: 1 '1' for the newest (leftmost), '0' for the one that is next
-- Returns: {'task', id, parameters} | {'empty', -1, 0}
return first_of(PENDING, ARGV[1] == '1', function(id)
  local parameters = some_of(id, 'parameters')[1]
  return parameters and {'task', id, parameters}
end) or {'empty', -1, 0}
