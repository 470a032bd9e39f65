-- Make claims last longer: at least so many milliseconds from now. They never get shorter.
-- KEYS: those of the prelude
-- ARGV: 1 milliseconds, 2... claims (id, token or '' for any claim)
-- Returns: {'extended', a letter for each claim: '1' done, '0' the event is not claimed (with this token),
--           1 if the queue is paused or held} |
--          {'corrupt', why}
local bound, created = state(false)
if not bound then return created end
if not created then check_types() end
local halted = is_halted()
ignore_memory_limit()
local lease, letters = tonumber(ARGV[1]), {}
for i = 2, #ARGV, 2 do
  local id, token = ARGV[i], ARGV[i + 1]
  local lock = lock_of(id)
  local left, holder = call('PTTL', lock), call('GET', lock)
  local ours = token == '' and holder or holder == token
  -- A lock that has just expired can be renewed while nobody else has taken the event.
  if not holder and token ~= '' then ours = call('LPOS', CLAIMED, id, 'RANK', -1) end
  if ours then
    if left ~= -1 and left < lease then
      call('SET', lock, holder or token, 'PX', lease)
      index({now() + lease, id})
    end
    letters[#letters + 1] = '1'
  else
    letters[#letters + 1] = '0'
  end
end
heal()
return {'extended', table.concat(letters), halted}
