-- Put as many messages for later as there is room for, in order. They enter the queue, and count as produced, when they
-- are due.
-- KEYS: those of the prelude
-- ARGV: 1 uid, 2 sequence, 3 '1' if this repeats a step, 4 '1' if the producer role was claimed, 5 lease token or '',
--       6 '1' to ignore the bound, '2' if the permit is long overdue (see put.lua), 7... messages, each followed by
--       when it is due, as `due_time` reads it
-- Returns: those of put.lua: number of messages put | {'full'} | {'room'} | {'missing'} | {'corrupt', why} |
--          {'closed'} | {'busy', role, holder, milliseconds of its lease or -1} | {'lost'}
local claimed, token = ARGV[4], ARGV[5]
local before = recall_number(ARGV[2], ARGV[3])
if before then return before end
local bound, wrong = check(PRODUCER)
delayed()  -- raises an error where it is of the wrong type
if wrong then return refuse(wrong, PRODUCER, claimed, token, bound) end
local closed, usual = survey(bound, true, token ~= '' and PRODUCER or nil)
local entered, refusal = enter(PRODUCER, claimed, token, usual)
if not entered then return refusal end

call('SET', KEYS[HOLDER + PRODUCER], ARGV[1])  -- the first write: a server that is out of memory refuses it
unclaim(PRODUCER, claimed)
if closed == 1 then return {'closed'} end
local messages = (#ARGV - 6) / 2
if bound > 0 and ARGV[6] ~= '1' then
  local length = call('LLEN', LIST)
  local free = places(bound, length, nil, ARGV[6] == '2')
  if free == 0 and length < bound then return await_room(bound, length) end
  messages = math.min(messages, free)
end
if messages > 0 then
  local values = {}
  for i = 1, messages do
    local n = #values
    values[n + 1], values[n + 2], values[n + 3] = due_time(ARGV[6 + 2 * i]), 0, ARGV[5 + 2 * i]
  end
  local first = delay(ARGV[2], values)
  record(ARGV[2], messages)
  if first <= now() then promote(bound, true) end
end
normalise(bound)
return messages
