-- Look at a waiting event (specification: QLPEEK, QRPEEK).
-- KEYS: those of the prelude
-- ARGV: 1 '1' for the newest (leftmost), '0' for the one that is next
-- Returns: {'event', id, contents} | {'empty', -1, 0}
local newest = ARGV[1] == '1'
for first = 0, 1000, 100 do
  local last = first + 99
  local ids = newest and call('LRANGE', UNCLAIMED, first, last) or call('LRANGE', UNCLAIMED, -last - 1, -first - 1)
  if #ids == 0 then break end
  for i = 1, #ids do
    local id = newest and ids[i] or ids[#ids + 1 - i]
    local contents = call('HGET', ITEMS, id)
    if contents then return {'event', id, contents} end
  end
end
return {'empty', -1, 0}
