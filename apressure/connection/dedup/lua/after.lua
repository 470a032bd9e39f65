-- Note what the script has put. `put` has a letter for each of its messages, as far as there was room; it is false, if
-- the script has refused all of them.
-- The answer becomes {'dedup', a letter for each message that was looked at: 'k' put, 'd' a repeat, 'e' its id is in
-- use; the script's answer, where it has refused the next one}
local told, next_one, notes = '', 0, {}
for i = 1, count do
  local letter = letters[i]
  if letter == '?' then
    next_one = next_one + 1
    letter = put and string.sub(put, next_one, next_one) or ''
    if letter == 'k' then
      notes[#notes + 1], notes[#notes + 2] = unpack(chosen[next_one], 1, 2)
    elseif letter == 'd' then
      letter = 'e'
    end
  end
  if letter == '' then break end
  told = told .. letter
end
if #notes > 0 then
  for i = 1, #some, 2 do
    if not token_in(some[i + 1]) then redis.call('HDEL', seen, some[i]) end
  end
  redis.call('HSET', seen, unpack(notes))
end
if put then
  answer = {'dedup', told}
  if told ~= '' then keep(told) end
elseif told ~= '' then
  answer = {'dedup', told, answer}
end
