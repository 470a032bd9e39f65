-- Note what the script has put. `put` has a letter for each of its messages, as far as there was room; it is false, if
-- the script has refused all of them.
-- The answer becomes {'dedup', a letter for each message that was looked at: 'k' put, 'r' put in the place of another
-- one, 'd' a repeat, 'e' its id is in use, and, behind a space, the packed ids of those that were replaced; the
-- script's answer, where it has refused the next one}
local told, ids, place, notes = '', '', 0, {}
for i = 1, count do
  local letter = letters[i]
  if letter == '?' then
    place = place + 1
    letter = put and string.sub(put, place, place) or ''
    if letter == 'k' then
      notes[#notes + 1], notes[#notes + 2], replaced[i] = unpack(chosen[place], 1, 3)
      letter = replaced[i] and 'r' or 'k'
    end
  end
  if letter == '' then break end
  told = told .. letter
  if letter == 'r' then ids = ids .. #replaced[i] .. ':' .. replaced[i] end
end
if ids ~= '' then told = told .. ' ' .. ids end
if #notes > 0 then
  if #old > 0 then redis.call('HDEL', seen, unpack(old)) end
  redis.call('HSET', seen, unpack(notes))
end
if put then
  answer = {'dedup', told}
  if told ~= '' then redis.call('SET', series, sequence .. ':' .. told, 'PX', RECORD_MS) end
elseif told ~= '' and answer[1] ~= 'missing' and answer[1] ~= 'lost' then
  answer = {'dedup', told, answer}
end
