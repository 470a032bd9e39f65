-- Push as many events as there is room for, in order (specification: QLPUSH, QRPUSH).
-- KEYS: those of the prelude
-- ARGV: 1 sequence, 2 '1' if this repeats a step, 3 '1' to push them to the front, 4 '2' to give back what was popped, also
--       to a full or a closed queue, otherwise '0', 5 '1' if the queue must have been created, 6... events
--       (id, contents; with '2' then what was known of it, or '': '#' and its packed key, and what EXPIRES had of it)
-- Returns: {'pushed', a letter for each event that was looked at: 'k' pushed, 'd' its id is in the queue already}
--          (fewer letters than events: the queue is full) | {'missing'} | {'corrupt', why} | {'closed'}
local before = recall(ARGV[1], ARGV[2])
if before then return {'pushed', before} end
local bound, refusal = open_to_puts(ARGV[5] == '1', ARGV[4] == '2')
if not bound then return refusal end
local room = bound > 0 and ARGV[4] == '0' and math.max(0, bound - occupied()) or math.huge
local letters, places, ids, pairs_ = accepted(6, #ARGV, ARGV[4] == '2' and 3 or 2, room)
if #ids > 0 then
  respect_memory_limit()
  publish(ids)
  forget_attempts(ids)
  local ends, again, unparked = {}, {}, ARGV[4] == '2' and {} or ids
  for i = 1, ARGV[4] == '2' and #ids or 0 do
    local entry = ARGV[places[i] + 2]
    if string.sub(entry, 1, 1) == '#' then
      local key, from = unpack_text(entry, 2)
      again[#again + 1], again[#again + 2] = ids[i], key or ''
      entry = string.sub(entry, from or #entry + 1)
    else
      unparked[#unparked + 1] = ids[i]
    end
    if entry ~= '' then ends[#ends + 1], ends[#ends + 2] = ids[i], entry end
  end
  push('HSET', EXPIRES, ends)
  push('HSET', ITEMS, pairs_)
  for i = 1, #again, 2 do park_first(again[i], again[i + 1]) end
  push(ARGV[3] == '1' and 'RPUSH' or 'LPUSH', UNCLAIMED, unparked)
  promote()
  if #again > 0 then show_next() end
end
return answer_put(letters, bound)
