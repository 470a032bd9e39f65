-- Look at a waiting event (specification: QLPEEK, QRPEEK).
-- KEYS: those of the prelude
-- ARGV: 1 '1' for the newest (leftmost), '0' for the one that is next
-- Returns: {'event', id, contents} | {'empty', -1, 0}
local function event(id)
  local contents = call('HGET', ITEMS, id or '')
  return contents and {'event', id, contents}
end
return first_of(UNCLAIMED, ARGV[1] == '1', event) or event(first_parked(1)[1]) or {'empty', -1, 0}
