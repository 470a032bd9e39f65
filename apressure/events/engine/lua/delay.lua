-- Put as many events as there is room for, in order: for later, that expire, or with a key.
-- KEYS: those of the prelude
-- ARGV: 1 sequence, 2 '1' if this repeats a step, 3 '1' if the queue must have been created, 4... events (id, contents,
--       when it is due, as `due_time` reads it; '=' before that, if it takes the place of the event with that id, which
--       waits or is delayed)
-- Returns: those of push.lua

-- An event that is in line keeps its place, and one that is delayed is due when the new one is. It keeps its key; a
-- retry in its pause no longer has its turn.
local function replace(id, contents, when, number)
  local due, expires, _, cost = due_time(string.sub(when, 2))
  local entry = entry_of(cost, expires, contents)
  call('HDEL', ATTEMPTS, id)
  if (error_count() or 0) > 0 then call('HDEL', ERRORS, id) end
  if entry then call('HSET', EXPIRES, id, entry) else call('HDEL', EXPIRES, id) end
  if call('HEXISTS', LATER, id) == 1 then
    delay({due + 0.0003 * number, id}, {id, contents})
    wait_anew(id)
  else
    call('HSET', ITEMS, id, contents)
  end
end

local before = recall(ARGV[1], ARGV[2])
if before then return {'pushed', before} end
local bound, refusal = open_to_puts(ARGV[3] == '1')
if not bound then return refusal end
local room = bound > 0 and math.max(0, bound - occupied()) or math.huge
local replacing = {}
local letters, places, ids, pairs_ = accepted(4, #ARGV, 3, room, replacing)
if #ids + #replacing > 0 then
  local scores, later, ready, contents, ends, keys, leaves = {}, {}, {}, {}, {}, {}, {}
  for i = 1, #ids do
    local id, text = ids[i], pairs_[2 * i]
    local due, expires, key, cost = due_time(ARGV[places[i] + 2])
    local entry = entry_of(cost, expires, text)
    if due > now() then
      -- A fraction keeps the order of events that were put together.
      scores[#scores + 1], scores[#scores + 2] = due + 0.0003 * i, id
      later[#later + 1], later[#later + 2] = id, text
    else
      ready[#ready + 1] = id
      contents[#contents + 1], contents[#contents + 2] = id, text
    end
    if key ~= '' then keys[#keys + 1], keys[#keys + 2] = id, key end
    if entry then ends[#ends + 1], ends[#ends + 2] = id, entry end
    leaves[id] = expires
  end
  respect_memory_limit()
  forget_attempts(ids)
  push('HSET', EXPIRES, ends)
  if #keys > 0 then forget_strangers(#keys + 10, call('HLEN', ITEMS) + call('HLEN', LATER), is_known) end
  note_keys(keys)
  for id, when in pairs(leaves) do note_request(id, when) end
  if #scores > 0 then delay(scores, later) end
  promote()
  publish(ready)
  push('HSET', ITEMS, contents)
  push('LPUSH', UNCLAIMED, ready)
  for i = 1, #replacing do
    local id, text, when = unpack(ARGV, replacing[i], replacing[i] + 2)
    replace(id, text, when, i)
  end
  if #replacing > 0 then
    promote()
    show_next()
  end
end
return answer_put(letters, bound)
