-- Acknowledge events, or put them back (specification: QACK).
-- KEYS: those of the prelude
-- ARGV: 1 sequence, 2 '1' if this repeats a step, 3 'ack', 'reply' (with the reply to a request), 'nack' (counts
--       as an attempt), 'fail' (so does this), 'later' (so does this) or 'unseen' (does not), 4 '1' to acknowledge
--       waiting events, too, 5... claims (id, token or '' for any claim; with 'fail' and 'later' then an error, or '';
--       with 'later' then when it is due; with 'reply' then the reply, as the prelude's `reply` has it)
-- Returns: {'settled', a letter for each claim: '1' done, '0' the event is not claimed (with this token)} |
--          {'corrupt', why}
local before = recall(ARGV[1], ARGV[2])
if before then return {'settled', before} end
local bound, created = state(false)
if not bound then return created end
if not created then check_types() end
local limited = limits_flight()
ignore_memory_limit()
local how = ARGV[3]
local letters, settled, waiting, errors, dues, replies = {}, {}, 0, {}, {}, {}
local width = how == 'later' and 4 or (how == 'fail' or how == 'reply') and 3 or 2
local holders = holders_from(5, width)
-- A consumer mostly settles the oldest claims in order: one command removes all of them.
local claims = (#ARGV - 4) / width
local oldest = claims > 1 and call('LRANGE', CLAIMED, -claims, -1) or {}
local in_order = #oldest == claims
for i = 1, #oldest do
  local at = 5 + (i - 1) * width
  local token = ARGV[at + 1]
  in_order = in_order and oldest[claims + 1 - i] == ARGV[at] and (token == '' or not holders[i] or holders[i] == token)
end
if in_order then call('LTRIM', CLAIMED, 0, -claims - 1) end
for i = 5, #ARGV, width do
  local id = ARGV[i]
  local token, holder = ARGV[i + 1], holders[(i - 5) / width + 1]
  -- Without a token, any claim will do. A claim whose lock has expired, and that nobody has put back yet, still belongs
  -- to its last owner.
  local mine = token == '' or not holder or holder == token
  local removed = in_order and 1 or mine and call('LREM', CLAIMED, -1, id) or 0
  -- The specification's QACK also finds an event that has gone back. That list can be long.
  if removed == 0 and ARGV[4] == '1' then
    removed = call('LREM', UNCLAIMED, -1, id)
    if removed == 0 and is_parked(id) then removed = 1 end
    waiting = waiting + removed
  end
  letters[#letters + 1] = removed > 0 and '1' or '0'
  if removed > 0 then
    settled[#settled + 1] = id
    if how == 'reply' then
      replies[id] = ARGV[i + 2]
    elseif width > 2 and ARGV[i + 2] ~= '' then
      errors[id] = ARGV[i + 2]
    end
    if how == 'later' then dues[id] = (due_time(ARGV[i + 3])) end
  end
end
if #settled > 0 then
  if how == 'ack' or how == 'reply' then
    push('HDEL', ITEMS, settled)
    reply(settled, how == 'ack' and 'n' or replies)
    forget(settled)
  else
    push('ZREM', EXPIRY, settled)
    local back = {}
    for i = 1, #settled do
      call('DEL', lock_of(settled[i]))
      if call('HEXISTS', ITEMS, settled[i]) == 1 then back[#back + 1] = settled[i] end
    end
    if how == 'later' then
      put_off(back, dues)
    else
      put_back(back, function() return how ~= 'unseen' end)
    end
    keep_errors(errors)
  end
end
record(ARGV[1], table.concat(letters))
heal()
if waiting > 0 then wake_putters(bound) end
if limited and #settled > 0 and call('LLEN', UNCLAIMED) > 0 then wake_limited() end
-- Consumers that wait for the end learn that it has come.
if #settled > 0 and is_closed() and call('LLEN', CLAIMED) == 0 then wake(TURNS) end
return {'settled', table.concat(letters)}
