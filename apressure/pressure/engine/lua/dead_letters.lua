-- Look at dead letters, the oldest first, and at the reason of each. Writes nothing.
-- KEYS: those of the prelude, of the dead-letter queue; then 28 the reasons
-- ARGV: 1 how many to pass over, 2 the most to return (up to about 1 MiB of them; fewer where many have equal ones)
-- Returns: {'ok', {messages}, {the reason of each: 'time:attempts:attempt:error', or ''}, number of dead letters} |
--          {'missing'}
if call('EXISTS', BOUND) == 0 then return {'missing'} end
local passed, length = tonumber(ARGV[1]), call('LLEN', LIST)
local messages = page_of(LIST, passed, math.min(tonumber(ARGV[2]), length - passed))

local reasons, known, sought = {}, holds_reasons(KEYS[28]), 0
for i = 1, #messages do
  if sought >= MOST_PASSED then  -- the next step returns the rest
    for j = #messages, i, -1 do messages[j] = nil end
    break
  end
  local lines = known and lines_of(KEYS[28], letter_field(messages[i])) or {}
  local place
  if #lines > 0 then
    -- Several may have, or have had, this content. The oldest may have been taken away without their reasons: the
    -- newest of them has the latest reason.
    local index = length - passed - i
    sought = sought + (#lines > 1 and length or index + 1)
    for j, found in ipairs(call('LPOS', LIST, messages[i], 'COUNT', #lines)) do
      if found == index then place = j end
    end
  end
  reasons[i] = place and lines[#lines + 1 - place] or ''
end
return {'ok', messages, reasons, length}
