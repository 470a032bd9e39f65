-- Put events back that are in neither list: okq died between its commands, or the caller is mistaken.
-- KEYS: those of the prelude
-- ARGV: 1... ids
-- Returns: number of events that were put back | {'corrupt', why}
local bound, created = state(false)
if not bound then return created end
if not created then check_types() end
local lost = {}
for i = 1, #ARGV do
  local id = ARGV[i]
  local known = call('HEXISTS', ITEMS, id) == 0 or is_parked(id) or call('LPOS', UNCLAIMED, id)
  known = known or call('LPOS', CLAIMED, id)
  if not known then lost[#lost + 1] = id end
end
if #lost > 0 then
  ignore_memory_limit()
  for i = 1, #lost do unpark(lost[i]) end
  put_back(lost, function() return false end)
end
return #lost
