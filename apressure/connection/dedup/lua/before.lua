-- Which of the messages are repeats? The script gets the others.
-- KEYS: behind those of the script, the hash of what was put
-- ARGV: HEAD arguments, then WIDTH for each message, of which the first is its id where the kind has ids; then for each
--       message its dedup id, a token of its own, and the milliseconds of its window, '' for until it is done; then how
--       many messages
-- The hash has a record for each dedup id: 'token:until:id', the time in milliseconds since 1970, or '' until the
-- message with that id is done.
local seen, count = table.remove(KEYS), tonumber(table.remove(ARGV))
local time = redis.call('TIME')
time = time[1] * 1000 + math.floor(time[2] / 1000)

-- The token in a record that still counts, or nil.
local function token_in(text)
  local token, ends, id = string.match(text or '', '^(%x+):(%d*):(.*)$')
  if not token then return nil end
  if ends == '' then return is_unfinished(id) and token or nil end
  return tonumber(ends) > time and token or nil
end

-- The record of the step has these letters, if it was carried out before. To look again would not do: by now, what was
-- a repeat may be none.
local series, sequence, repeated = KEYS[RECORD], ARGV[SEQUENCE], ARGV[SEQUENCE + 1]
local function keep(text) redis.pcall('SET', series, sequence .. ':' .. text, 'PX', RECORD_MS) end
local last, result = string.match(redis.call('GET', series) or '', '^(%d+):(.*)$')
local later = last and tonumber(last) > tonumber(sequence)  -- than this step, which comes too late
if later or last == sequence and (result ~= '' or repeated ~= '1') then
  redis.call('PEXPIRE', series, RECORD_MS)  -- a write, as in `recall`
  answer = {'dedup', later and '' or result}
end

local letters, fresh, chosen, some, first = {}, {}, {}, {}, #ARGV - 3 * count
for i = 1, answer and 0 or count do
  local id, token, window = unpack(ARGV, first + 3 * i - 2, first + 3 * i)
  local other = fresh[id] or token_in(redis.call('HGET', seen, id))
  letters[i] = not other and '?' or other == token and 'k' or 'd'  -- its own: this repeats a step
  if not other then
    local from = HEAD + WIDTH * (i - 1)
    local ends = window == '' and '' or string.format('%.0f', time + tonumber(window))
    fresh[id] = token
    chosen[#chosen + 1] = {id, token .. ':' .. ends .. ':' .. (window == '' and ARGV[from + 1] or ''), from}
  end
end
if answer == nil and #chosen == 0 then
  answer = {'dedup', table.concat(letters)}
  if repeated == '1' then keep(answer[2]) end  -- the step itself may still arrive
elseif answer == nil then
  local kept = {}
  for i = 1, #chosen do
    for j = 1, WIDTH do kept[#kept + 1] = ARGV[chosen[i][3] + j] end
  end
  -- Some records, of which those that do not count any more are forgotten: so few are old. They are looked for here,
  -- since a user without the right must learn of it before anything is written.
  some = redis.call('HRANDFIELD', seen, 8 + 2 * #chosen, 'WITHVALUES') or {}
  for i = #ARGV, HEAD + 1, -1 do ARGV[i] = nil end
  for i = 1, #kept do ARGV[HEAD + i] = kept[i] end
end
