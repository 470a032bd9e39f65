-- The id of a message that is a request: a CloudEvent in JSON whose id says who asks.
-- Returns: the id, or nil
local function request_in(message)
  if not string.find(message, '"apressure-ask:', 1, true) then return nil end
  local fine, event = pcall(cjson.decode, message)
  local id = fine and type(event) == 'table' and event.specversion == '1.0' and event.id
  return type(id) == 'string' and asker_of(id) and id or nil
end

-- The key that says until when somebody waits for the reply to a request; see `asked.lua`.
local function wait_for_reply(id)
  return 'apressure:' .. LIST .. ':asked:' .. id
end

-- Tell who has asked what has become of a request: a letter and what is behind it, as `reply` has it.
local function answer_request(id, outcome)
  reply({id}, outcome)
  redis.pcall('DEL', wait_for_reply(id))
end

-- Send the replies that go with acknowledgements.
-- replies: {number -> the id of a request, a space, and what `answer_request` takes}
-- values[from..to]: the acknowledgements, as for `acknowledge`
local function send_replies(replies, values, from, to)
  if not next(replies) then return end
  for i = from, to, 3 do
    for number = tonumber(values[i]), tonumber(values[i + 1]) do
      if replies[number] then answer_request(string.match(replies[number], '^([^ ]*) (.*)$')) end
    end
  end
end

