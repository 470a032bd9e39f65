-- Which of the messages are repeats? The script gets the others, and runs also if there are none: it gives back what
-- the client has claimed, and says what else is wrong.
-- KEYS: behind those of the script, the hash of what was put
-- ARGV: HEAD arguments, then WIDTH for each message, of which the first is its id where the kind has ids; then for each
--       message its dedup id, a token of its own, and the milliseconds of its window, '' for until it is done, or '!'
--       if it replaces one that waits; then how many messages
-- The hash has a record for each dedup id: 'token:until:id', the time in milliseconds since 1970, or '' until the
-- message with that id is done.
local seen, count = table.remove(KEYS), tonumber(table.remove(ARGV))
local time = redis.call('TIME')
time = time[1] * 1000 + math.floor(time[2] / 1000)

-- The token in a record that still counts, or nil; the id of its message, if it counts until that is done.
local function token_in(text)
  local token, ends, id = string.match(text or '', '^(%x+):(%d*):(.*)$')
  if not token then return nil end
  if ends == '' then return is_unfinished(id) and token or nil, id end
  return tonumber(ends) > time and token or nil
end

-- The record of the step has these letters, if it was carried out before. To look again would not do: by now, what was
-- a repeat may be none.
local series, sequence, repeated = KEYS[RECORD], ARGV[SEQUENCE], ARGV[SEQUENCE + 1]
local last, result = string.match(redis.call('GET', series) or '', '^(%d+):(.*)$')
local later = last and tonumber(last) > tonumber(sequence)  -- than this step, which comes too late
if later or last == sequence and (result ~= '' or repeated ~= '1') then
  redis.call('PEXPIRE', series, RECORD_MS)  -- a write, as in `recall`
  answer = {'dedup', later and '' or result}
end

-- letters: as in the answer, '?' for a message that the script gets | chosen: those, each {dedup id, record, the id of
-- the message that it replaces, or nil}
-- replaced: the ids of those whose letter is 'r', by the places of these
local letters, chosen, replaced, old = {}, {}, {}, {}
if answer == nil then
  local first, fresh, ids, kept = #ARGV - 3 * count, {}, {}, {}
  for i = 1, count do
    local dedup_id, token, window = unpack(ARGV, first + 3 * i - 2, first + 3 * i)
    local from = HEAD + WIDTH * (i - 1)
    local id, known = ARGV[from + 1], fresh[dedup_id] or {token_in(redis.call('HGET', seen, dedup_id))}
    local other, old_id = known[1], known[2]
    local replaces = window == '!' and old_id
    if other == token then  -- its own: this repeats a step
      letters[i], replaced[i] = old_id and old_id ~= id and 'r' or 'k', old_id
    elseif other and not replaces then
      letters[i] = 'd'
    elseif other and (fresh[dedup_id] or is_waiting(old_id)) then
      letters[i], fresh[dedup_id] = '?', {token, old_id}
      chosen[#chosen + 1] = {dedup_id, token .. '::' .. old_id, old_id}
      kept[#kept + 1], kept[#kept + 2] = old_id, ARGV[from + 2]
      for j = 3, WIDTH do kept[#kept + 1] = (j == WIDTH and '=' or '') .. ARGV[from + j] end
    elseif IDS and (ids[id] or is_unfinished(id)) then
      letters[i] = 'e'
    else
      local ends = tonumber(window) and string.format('%.0f', time + tonumber(window)) or ''
      letters[i], fresh[dedup_id], ids[id] = '?', {token, ends == '' and id}, true
      chosen[#chosen + 1] = {dedup_id, token .. ':' .. ends .. ':' .. (ends == '' and id or '')}
      for j = 1, WIDTH do kept[#kept + 1] = ARGV[from + j] end
    end
  end
  -- Of some records, those that do not count any more are forgotten: so few are old. They are looked for here, since an
  -- error must come before anything is written.
  local some = #chosen > 0 and redis.call('HRANDFIELD', seen, 8 + 2 * #chosen, 'WITHVALUES') or {}
  for i = 1, #some, 2 do
    if not token_in(some[i + 1]) then old[#old + 1] = some[i] end
  end
  for i = #ARGV, HEAD + 1, -1 do ARGV[i] = nil end
  for i = 1, #kept do ARGV[HEAD + i] = kept[i] end
end
