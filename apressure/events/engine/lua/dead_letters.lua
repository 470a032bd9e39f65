-- Look at dead letters, the oldest first. Writes nothing.
-- KEYS: those of the prelude
-- ARGV: 1 how many to pass over, 2 the most to return (up to about 1 MiB of them)
-- Returns: {'letters', {them, as `read_letter` says}}
local passed, most = tonumber(ARGV[1]), tonumber(ARGV[2])
local letters, bytes, chunk = {}, 0, 1
while #letters < most and bytes < 1048576 do
  local first = passed + #letters + 1
  local some = call('LRANGE', DEAD, -first - math.min(chunk, most - #letters) + 1, -first)
  if #some == 0 then break end
  for i = #some, 1, -1 do
    letters[#letters + 1] = some[i]
    bytes = bytes + #some[i]
  end
  chunk = bytes < 65536 and math.min(2 * chunk, 200) or 1
end
return {'letters', letters}
