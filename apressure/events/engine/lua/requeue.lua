-- Move dead letters back to the end of the queue, as far as there is room: the oldest first, or those that are chosen.
-- One whose id is in use again stays.
-- KEYS: those of the prelude
-- ARGV: 1 sequence, 2 '1' if this repeats a step, 3 how many at most, 4 '1' if the queue must have been created,
--       5... chosen dead letters, as they are in DEAD
-- Returns: {'moved', a letter for each one that was looked at: 'm' moved, 'd' it stays, '0' it is gone} (fewer letters:
--          the queue is full, or this would take too long) | {'closed'} | {'missing'} | {'corrupt', why}
local before = recall(ARGV[1], ARGV[2])
if before then return {'moved', before} end
local bound, refusal = open_to_puts(ARGV[4] == '1')
if not bound then return refusal end
local room = bound > 0 and math.max(0, bound - occupied()) or CHUNK
local most, chosen = math.min(tonumber(ARGV[3]), CHUNK), #ARGV > 4
local entries = chosen and {unpack(ARGV, 5)} or call('LRANGE', DEAD, -most, -1)
local letters, taken, ids, pairs_, kept, seen, keys, passed = {}, {}, {}, {}, {}, {}, {}, 0
for place = 1, #entries do
  local entry = entries[chosen and place or #entries + 1 - place]
  if #ids == room or passed > MOST_PASSED then break end
  local at = chosen and call('LPOS', DEAD, entry, 'RANK', -1)
  if at then passed = passed + call('LLEN', DEAD) - at end
  local id, from, key = read_letter(entry)
  if chosen and not at then
    letters[place] = '0'
  elseif not id or seen[id] or is_known(id) then
    letters[place] = 'd'
    kept[#kept + 1] = entry
  else
    letters[place] = 'm'
    seen[id] = true
    if key then keys[#keys + 1], keys[#keys + 2] = id, key end
    taken[#taken + 1], ids[#ids + 1] = entry, id
    pairs_[#pairs_ + 1], pairs_[#pairs_ + 2] = id, string.sub(entry, from)
  end
end
if #ids < #entries and #ids == room then call('SET', PUTTERS, 1, 'PX', WATCH_MS) end
if #letters > 0 then
  respect_memory_limit()
  publish(ids)
  note_keys(keys)
  push('HSET', ITEMS, pairs_)
  push('LPUSH', UNCLAIMED, ids)
  if chosen then
    for i = 1, #taken do call('LREM', DEAD, -1, taken[i]) end
  else
    call('LTRIM', DEAD, 0, -#letters - 1)
    push('LPUSH', DEAD, kept)
  end
  record(ARGV[1], table.concat(letters))
end
return {'moved', table.concat(letters)}
