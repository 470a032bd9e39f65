-- The id of a message that is a request: a CloudEvent whose id says who asks.
-- Returns: the id, or nil
local function request_in(message)
  if not string.find(message, '"apressure-ask:', 1, true) then return nil end
  local fine, event = pcall(cjson.decode, message)
  local id = fine and type(event) == 'table' and event.id
  return type(id) == 'string' and asker_of(id) and id or nil
end

-- The key that exists while somebody waits for the reply to a request.
local function wait_for_reply(id)
  return 'apressure:' .. LIST .. ':asked:' .. id
end

-- Send what `read_returned` found: {number -> the id of a request, a space, and its reply as `reply` has it}.
local function send_replies(replies)
  for _, text in pairs(replies) do
    local id, outcome = string.match(text, '^([^ ]*) (.*)$')
    reply({id}, outcome)
    redis.pcall('DEL', wait_for_reply(id))
  end
end

