-- Messages with a key wait in the line of their key, and only so many of a key are admitted at a time. A message is
-- admitted from when its turn has come until it is done: acknowledged, a dead letter, or deleted. So one that comes
-- again, since its lease has ended or it is tried again, is admitted still, and comes before the others of its key.
-- The room's prelude says which keys these are:
-- KEYED is a hash: 'i' and an id -> where a message stands, and its key. 'w': it waits in LIST, or is delayed; 'p' and
-- its number: it is parked in the line of its key; 'a': it is admitted, and in LIST, in flight or delayed. 'k' and a
-- key -> the packed ids of those that are admitted, where their number has a limit. 's' -> the latest number: each
-- message of LIST has one, of 13 digits, when its turn comes. 'c' -> when `check_lines` looked, and where it goes on.
-- LINES is a sorted set without scores: the packed key, the number and the id of each that is parked.
-- RING has keys by the number of their next turn: all that have a parked message and a place for it, and some that had
-- their turn a short time ago. LIST is not empty where RING is not: so those who watch LIST see that there is work.
-- A message without a key has the key '', of which any number may be admitted.
local KEYED, LINES, RING
local ROUND = 5000             -- how many messages of LIST may have their turn before a key has another one
local FIRST = 1000000000000    -- numbers begin here, so that one can come before the first
local MOST_KEY = 512           -- bytes of a key; of a longer one these count
local CHECK_MS = 100           -- so often some lines are looked at
local numbered
local counted = {}             -- key -> packed ids, how many these are

-- As `check_types` of the rooms, for these keys.
local function check_lines_types()
  if call('EXISTS', KEYED, LINES, RING) == 0 then return end
  call('HLEN', KEYED)
  call('ZCARD', LINES)
  call('ZCARD', RING)
end

local function pack(text)
  return #text .. ':' .. text
end

-- Returns: the packed text that begins at `from`, the place behind it | nil
local function unpack_text(packed, from)
  local colon = string.find(packed, ':', from, true)
  local length = colon and natural(string.sub(packed, from, colon - 1))
  if not length or colon + length > #packed then return nil end
  return string.sub(packed, colon + 1, colon + length), colon + length + 1
end

local function unpack_all(packed)
  local texts, text, from = {}, nil, 1
  while from <= #packed do
    text, from = unpack_text(packed, from)
    if not text then break end
    texts[#texts + 1] = text
  end
  return texts
end

-- Is there a message with a key, or were keys asked for?
local function has_keys()
  return call('EXISTS', KEYED) == 1 or call('HEXISTS', CONTROL, 'key_most') == 1
end

-- The steps of a JSON pointer (RFC 6901).
local function steps_of(pointer)
  local steps = {}
  for step in string.gmatch(pointer, '/([^/]*)') do
    step = string.gsub(step, '~1', '/')
    steps[#steps + 1] = string.gsub(step, '~0', '~')
  end
  return steps
end

-- Where nothing was said, one of a key is admitted, and keys take turns.
-- Returns: {most = how many of a key may be admitted, fair = whether keys take turns, or go by who came first, steps =
--          those of the pointer to the key in contents of JSON, or nil}
local function key_terms()
  local said = redis.pcall('HMGET', CONTROL, 'key_most', 'key_fair', 'key_pointer')
  local most = natural(said[1] or nil) or 1
  return {most = most > 0 and most or math.huge, fair = said[2] ~= '0', steps = said[3] and steps_of(said[3]) or nil}
end

-- The key there in contents of JSON: a text, or a number or truth as JSON writes them; '' where none is.
local function key_at(steps, contents)
  local readable, value = pcall(cjson.decode, contents)
  for i = 1, readable and #steps or 0 do
    if type(value) ~= 'table' then return '' end
    local step = steps[i]
    if value[step] ~= nil then value = value[step] else value = value[(tonumber(step) or -1) + 1] end
  end
  if not readable then return '' end
  if type(value) == 'string' then return #value > MOST_KEY and string.sub(value, 1, MOST_KEY) or value end
  if type(value) == 'number' then  -- ids of 15 digits and more would be the same in the usual format
    return string.format(value % 1 == 0 and math.abs(value) < 1e21 and '%.0f' or '%.14g', value + 0)  -- (no -0)
  end
  return type(value) == 'boolean' and tostring(value) or ''
end

local function latest_number()
  return numbered or natural(call('HGET', KEYED, 's') or nil) or FIRST
end

local function next_number()
  numbered = latest_number() + 1
  return numbered
end

local function keep_number()
  if numbered then call('HSET', KEYED, 's', numbered) end
end

-- The number of a key's next turn: behind what LIST has, of which a round has so many.
local function next_turn(waiting)
  return waiting > 0 and latest_number() + math.min(waiting, ROUND) + 1 or next_number()
end

-- Members of LINES from the front of the line of a key; where the number begins in them.
local function line_of(key, most)
  local start = pack(key)
  return call('ZRANGEBYLEX', LINES, '[' .. start, '(' .. start .. ':', 'LIMIT', 0, most), #start + 1
end

-- The ids of members of LINES.
local function parked_ids(members)
  local ids = {}
  for i = 1, #members do
    local _, from = unpack_text(members[i], 1)
    ids[i] = string.sub(members[i], (from or 1) + 13)
  end
  return ids
end

-- The ids of some parked messages, line by line.
local function first_parked(most)
  return parked_ids(call('ZRANGE', LINES, 0, most - 1))
end

-- The keys of messages, as far as they were noted; false for those without one.
local function noted_keys(ids)
  local fields, keys = {}, {}
  for i = 1, #ids do fields[i], keys[i] = 'i' .. ids[i], false end
  if #ids == 0 or call('EXISTS', KEYED) == 0 then return keys end
  local states = call('HMGET', KEYED, unpack(fields))
  for i = 1, #ids do
    local state = states[i] or ''
    keys[i] = string.match(state, '^[aw](.+)$') or string.match(state, '^p%d%d%d%d%d%d%d%d%d%d%d%d%d(.+)$') or false
  end
  return keys
end

-- The packed ids of those that are admitted of some keys, where that has a limit. `keep_admitted` writes them back.
-- Returns: {key -> ids}
local function admitted_of(keys, terms)
  local found, fields = {}, {}
  for i = 1, #keys do fields[i] = 'k' .. keys[i] end
  local packed = #keys > 0 and terms.most < math.huge and call('HMGET', KEYED, unpack(fields)) or {}
  for i = 1, #keys do found[keys[i]] = packed[i] or '' end
  return found
end

local function keep_admitted(keys, found, terms)
  local values, none = {}, {}
  for i = 1, terms.most < math.huge and #keys or 0 do
    local key = keys[i]
    if found[key] == '' then
      none[#none + 1] = 'k' .. key
    elseif key ~= '' then
      values[#values + 1], values[#values + 2] = 'k' .. key, found[key]
    end
  end
  push('HSET', KEYED, values)
  push('HDEL', KEYED, none)
end

-- How many more of a key may be admitted. admitted: the packed ids of those that are
local function places_left(key, admitted, terms)
  if key == '' or admitted == '' then return key == '' and math.huge or terms.most end
  local known = counted[key]
  if not known or known[1] ~= admitted then
    known = {admitted, #unpack_all(admitted)}
    counted[key] = known
  end
  return terms.most - known[2]
end

-- Packed ids and one more. (They are counted once in a step: of a key, hundreds may be admitted.)
local function with(key, admitted, id, terms)
  if key == '' or terms.most == math.huge then return admitted end
  local count = terms.most - places_left(key, admitted, terms)
  admitted = admitted .. pack(id)
  counted[key] = {admitted, count + 1}
  return admitted
end

-- Packed ids without those that `is_gone` says.
local function without(admitted, is_gone)
  local ids, left = unpack_all(admitted), {}
  for i = 1, #ids do
    if not is_gone(ids[i]) then left[#left + 1] = pack(ids[i]) end
  end
  return table.concat(left)
end

-- Note the next turn of a key: behind what LIST has, or, where keys do not take turns, by who came first.
-- Returns: whether it has one: where nothing is in line, it needs none, unless others in LIST are to have theirs first
-- from: where its number begins
-- Returns: whether it has a turn: one with nothing in line needs none, unless others in LIST are to have theirs first
local function add_turn(turns, key, terms, waiting, next_one, from)
  if not (next_one or terms.fair and waiting > 0) then return false end
  turns[#turns + 1] = terms.fair and next_turn(waiting) or string.sub(next_one, from, from + 12)
  turns[#turns + 1] = key
  return true
end

-- Give keys their turn that have something in line, or, where keys take turns, have just had theirs.
local function call_up(keys)
  if #keys == 0 then return end
  local terms, parked, waiting, turns = key_terms(), call('ZCARD', LINES) > 0, call('LLEN', LIST), {}
  for i = 1, #keys do
    local first, from = {}, nil
    if parked then first, from = line_of(keys[i], 1) end
    add_turn(turns, keys[i], terms, waiting, first[1], from)
  end
  if #turns > 0 then call('ZADD', RING, 'NX', unpack(turns)) end
  keep_number()
end

-- Give each key its turn that has something in line, of up to 1,000; `check_lines` meets the others.
local function call_up_all()
  local keys, from = {}, '-'
  while #keys < CHUNK and call('EXISTS', LINES) == 1 do
    local first = call('ZRANGEBYLEX', LINES, from, '+', 'LIMIT', 0, 1)[1]
    local key = first and unpack_text(first, 1)
    if not key then break end
    keys[#keys + 1] = key
    from = '(' .. pack(key) .. ':'
  end
  call_up(keys)
end

-- Is there a limit of how many of a key are admitted?
local function limits_keys()
  return key_terms().most < math.huge
end

-- Such a limit may have come or gone: what was admitted without one counts from now on, and what was noted is forgotten
-- where nothing keeps it up to date. This looks at all messages with keys: it is for an operator's step only.
-- limited: whether there was a limit before
local function note_admitted(limited)
  if limits_keys() == limited or call('EXISTS', KEYED) == 0 then return end
  local found, stale, cursor, seen, noted = {}, {}, '0', {}, {}
  repeat
    local answer = call('HSCAN', KEYED, cursor, 'COUNT', CHUNK)
    local fields = answer[2]
    cursor = answer[1]
    for i = 1, #fields, 2 do
      local field, key = fields[i], string.match(fields[i + 1], '^a(.+)$')
      if string.sub(field, 1, 1) == 'k' then
        stale[#stale + 1] = field
      elseif string.sub(field, 1, 1) == 'i' and key and not limited and not seen[field] then
        seen[field] = true
        found[key] = (found[key] or '') .. pack(string.sub(field, 2))
      end
    end
  until cursor == '0'
  for key, ids in pairs(found) do noted[#noted + 1], noted[#noted + 2] = 'k' .. key, ids end
  push('HDEL', KEYED, stale)
  push('HSET', KEYED, noted)
end

-- The limits have changed. limited: as for `note_admitted`
local function renew_lines(limited)
  note_admitted(limited)
  call_up_all()
end

-- Note where messages of these keys are now, which turns the keys have, and what of them is admitted.
local function note_places(places, keys, turns, found, terms)
  push('HSET', KEYED, places)
  push('ZADD', RING, turns)
  if #places > 0 then keep_admitted(keys, found, terms) end
end

-- Admit parked messages whose turn it is.
-- most: how many | waiting: how many LIST has; where it has none, every turn has come | Returns: their ids, in order
local function admit(most, terms, waiting)
  local ids, parked = {}, call('EXISTS', LINES) == 1
  while #ids < most do
    local latest = waiting > 0 and latest_number() + 1 or '+inf'
    if not parked then
      call('ZREMRANGEBYSCORE', RING, '-inf', latest)
      break
    end
    local at_a_time = terms.fair and math.min(most - #ids, 100) or 1
    local turns = call('ZRANGEBYSCORE', RING, '-inf', latest, 'LIMIT', 0, at_a_time)
    if #turns == 0 then break end
    call('ZREM', RING, unpack(turns))
    local found, out, places, again = admitted_of(turns, terms), {}, {}, {}
    for i = 1, #turns do
      local key = turns[i]
      local left, first, from = places_left(key, found[key], terms), {}, nil
      if left > 0 then first, from = line_of(key, 2) end
      if first[1] then
        local id = string.sub(first[1], from + 13)
        out[#out + 1], ids[#ids + 1] = first[1], id
        places[#places + 1], places[#places + 2] = 'i' .. id, 'a' .. key
        found[key] = with(key, found[key], id, terms)
        if left > 1 then add_turn(again, key, terms, waiting, first[2], from) end
      end
    end
    push('ZREM', LINES, out)
    note_places(places, turns, again, found, terms)
  end
  keep_number()
  return ids
end

local function is_parked(id)
  local place, key = string.match(call('HGET', KEYED, 'i' .. id) or '', '^p(%d%d%d%d%d%d%d%d%d%d%d%d%d)(.*)$')
  return place and call('ZSCORE', LINES, pack(key) .. place .. id) and true or false
end

-- Bring messages at the front of LIST into line, and put back there those that may be handed out now.
-- most: how many of these | keys_of: returns the keys of the last of some messages, given their ids, what KEYED has of
-- each, the steps to the key in contents of JSON, and which of them is the last
-- Returns: how many there are, at most so many; whether LIST has changed
local function line_up(most, keys_of)
  local terms, waiting, admitted, looked, more = key_terms(), call('LLEN', LIST), {}, 0, true
  while more and #admitted < most and looked < CHUNK do
    -- Where none may be handed out, more and more at a time: there may be many of one key.
    local ids, fields = call('LRANGE', LIST, -math.min(math.max(most - #admitted, looked), 100), -1), {}
    for i = 1, #ids do fields[i] = 'i' .. ids[i] end
    local states, last = #ids > 0 and call('HMGET', KEYED, unpack(fields)) or {}, #ids
    while last > 0 and #admitted < most and string.sub(states[last] or '', 1, 1) == 'a' do
      admitted[#admitted + 1] = ids[last]
      last = last - 1
    end
    waiting = waiting - (#ids - last)
    local before = admit(most - #admitted, terms, waiting)
    for i = 1, #before do admitted[#admitted + 1] = before[i] end
    local keys = #admitted < most and keys_of(ids, states, terms.steps, last) or {}
    local turn, met = {}, {}
    for i = last, 1, -1 do
      local key = keys[i]
      if key and turn[key] == nil then
        turn[key] = false
        met[#met + 1] = key
      end
    end
    local scores, found = #met > 0 and call('ZMSCORE', RING, unpack(met)) or {}, admitted_of(met, terms)
    for i = 1, #met do turn[met[i]] = scores[i] end
    local members, places, turns = {}, {}, {}
    while last > 0 and keys[last] and #admitted < most do
      local id, key, field, letter = ids[last], keys[last], fields[last], string.sub(states[last] or '', 1, 1)
      last, waiting, looked = last - 1, waiting - 1, looked + 1
      if letter == 'a' then
        admitted[#admitted + 1] = id
      elseif letter ~= 'p' or not is_parked(id) then  -- otherwise its id was in LIST twice
        local number, left = next_number(), turn[key] and 0 or places_left(key, found[key], terms)
        if left > 0 then
          admitted[#admitted + 1], found[key] = id, with(key, found[key], id, terms)
          places[#places + 1], places[#places + 2] = field, 'a' .. key
        else
          local place = string.format('%013.0f', number)
          members[#members + 1], members[#members + 2] = 0, pack(key) .. place .. id
          places[#places + 1], places[#places + 2] = field, 'p' .. place .. key
        end
        if left > 1 then turn[key] = add_turn(turns, key, terms, waiting) end
      end
    end
    push('ZADD', LINES, members)
    note_places(places, met, turns, found, terms)
    call('LTRIM', LIST, 0, last - #ids - 1)
    more = last == 0 and #ids > 0
  end
  keep_number()
  local back = {}
  for i = #admitted, 1, -1 do back[#back + 1] = admitted[i] end
  push('RPUSH', LIST, back)
  return #admitted, looked > 0 or #admitted > 0
end

-- A parked message is in no line any more, since another program has deleted LINES: it is about to wait in LIST.
local function unpark(id)
  local state = call('HGET', KEYED, 'i' .. id) or ''
  if string.sub(state, 1, 1) == 'p' then call('HSET', KEYED, 'i' .. id, 'w' .. string.sub(state, 15)) end
end

-- Forget the keys of a few random messages that are gone, where there may be many: another program that settles one
-- leaves its key. KEYED has a field for each message, and one for the key of each that is admitted.
-- most: how many are looked at | present: how many messages there are | is_there: says whether the queue has one
local function forget_strangers(most, present, is_there)
  if call('HLEN', KEYED) <= 2 * present + CHUNK then return end
  local fields, gone = redis.pcall('HRANDFIELD', KEYED, most), {}  -- (a user may be without that right)
  for i = 1, fields.err and 0 or #fields do
    local id = string.match(fields[i], '^i(.*)$')
    if id and not is_there(id) then gone[#gone + 1] = fields[i] end
  end
  push('HDEL', KEYED, gone)
end

-- Messages with keys are about to wait in LIST, or are delayed. keys: ids, each followed by its key
local function note_keys(keys)
  if #keys == 0 then return end
  local states = {}
  for i = 1, #keys, 2 do states[i], states[i + 1] = 'i' .. keys[i], 'w' .. keys[i + 1] end
  push('HSET', KEYED, states)
  if call('HEXISTS', CONTROL, 'key_most') == 0 then call('HSET', CONTROL, 'key_most', 1, 'key_fair', 1) end
end

-- A message that was taken for good comes back: it is the first in the line of its key.
local function park_first(id, key)
  local first, from = line_of(key, 1)
  local place = first[1] and natural(string.sub(first[1], from, from + 12))
  place = string.format('%013.0f', place and place - 1 or next_number())
  call('ZADD', LINES, 0, pack(key) .. place .. id)
  call('HSET', KEYED, 'i' .. id, 'p' .. place .. key)
  keep_number()
  call('ZADD', RING, numbered or place, key)
end

-- Keep LIST from being empty while a message could be admitted. Returns: its id, if it was admitted for that
local function restock()
  if call('EXISTS', RING) == 0 or call('LLEN', LIST) > 0 then return nil end
  local id = admit(1, key_terms(), 0)[1]
  if id then call('RPUSH', LIST, id) end
  return id
end

-- Messages are done: others of their keys may have their turn.
local function leave_lines(ids)
  if #ids == 0 or call('EXISTS', KEYED) == 0 then return end
  local terms, keys, members, gone, known = key_terms(), {}, {}, {}, {}
  for from = 1, #ids, CHUNK do
    local fields = {}
    for i = from, math.min(from + CHUNK - 1, #ids) do fields[#fields + 1] = 'i' .. ids[i] end
    local states = call('HMGET', KEYED, unpack(fields))
    call('HDEL', KEYED, unpack(fields))
    for i = 1, #fields do
      local letter, id, key = string.sub(states[i] or '', 1, 1), ids[from + i - 1], nil
      if letter == 'a' then
        key = string.sub(states[i], 2)
        gone[id] = true
      elseif letter == 'p' then
        key = string.sub(states[i], 15)
        members[#members + 1] = pack(key) .. string.sub(states[i], 2, 14) .. id
      end
      if key and not known[key] then
        known[key] = id
        keys[#keys + 1] = key
      end
    end
  end
  push('ZREM', LINES, members)
  for from = 1, #keys, CHUNK do
    local some = {unpack(keys, from, math.min(from + CHUNK - 1, #keys))}
    local found = admitted_of(some, terms)
    for i = 1, #some do
      local key = some[i]
      if found[key] == pack(known[key]) then
        found[key] = ''
      else
        found[key] = without(found[key], function(id) return gone[id] end)
      end
    end
    keep_admitted(some, found, terms)
    call_up(some)
  end
  local fields = call('HLEN', KEYED)
  local others = fields <= 2 and call('HEXISTS', KEYED, 's') + call('HEXISTS', KEYED, 'c')
  if fields == others then call('DEL', KEYED, RING) end
end

-- A message that was admitted, and neither waits nor is in flight, is to have its turn again, as a new one.
local function wait_anew(id)
  local key = string.match(call('HGET', KEYED, 'i' .. id) or '', '^a(.+)$')
  if key then
    leave_lines({id})
    note_keys({id, key})
  end
end

-- Look at some keys that have messages in line, in turn: those that were admitted may be gone, where another program
-- has settled them, or no longer count, since there was no limit for a time. Their places are free then.
-- (Not at random messages: where one key has most of them, the others would hardly ever be looked at.)
-- is_there: says whether the queue has a message
local function check_lines(is_there)
  local at, from = string.match(redis.pcall('HMGET', KEYED, 'c')[1] or '', '^(%d+):(%(.+)$')
  at = natural(at) or 0
  if at <= now() and now() - at < CHECK_MS then return end
  local keys, terms = {}, key_terms()
  from = from or '-'
  while #keys < 100 do
    local key = unpack_text(call('ZRANGEBYLEX', LINES, from, '+', 'LIMIT', 0, 1)[1] or '', 1)
    from = key and '(' .. pack(key) .. ':'
    if not key then break end
    keys[#keys + 1] = key
  end
  call('HSET', KEYED, 'c', now() .. ':' .. (from or '(!'))
  local found, free = admitted_of(keys, terms), {}
  for i = 1, #keys do
    local key = keys[i]
    local ids, left = unpack_all(found[key]), {}
    for j = 21, #ids do left[#left + 1] = pack(ids[j]) end  -- those are next
    for j = 1, math.min(#ids, 20) do
      if call('HGET', KEYED, 'i' .. ids[j]) == 'a' .. key then
        if is_there(ids[j]) then left[#left + 1] = pack(ids[j]) else call('HDEL', KEYED, 'i' .. ids[j]) end
      end
    end
    found[key] = table.concat(left)
    if places_left(key, found[key], terms) > 0 then free[#free + 1] = key end
  end
  keep_admitted(keys, found, terms)
  call_up(free)
end
