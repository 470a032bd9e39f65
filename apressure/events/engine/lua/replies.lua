-- Remove replies that were read, and return the next ones, the oldest first.
-- KEYS: those of the prelude
-- ARGV: 1 the digits of the asker, 2... the ids of the requests whose replies were read
-- Returns: {'replies', up to 50 of them, each the id of its request, a space, a letter and what is behind it}
local list = replies_to(ARGV[1])
local read, done = {}, 0
for i = 2, #ARGV do read[ARGV[i]] = true end
local page = page_of(list, 0, #ARGV - 1)
while done < #page and read[string.match(page[done + 1], '^[^ ]*')] do done = done + 1 end
if done > 0 then call('LTRIM', list, 0, -done - 1) end
return {'replies', page_of(list, 0, 50)}
