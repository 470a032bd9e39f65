-- Remove replies that were read, and return the next ones, the oldest first.
-- KEYS: 1 the list of the asker's replies
-- ARGV: 1... the ids of the requests whose replies were read
-- Returns: up to 50 of them, each the id of its request, a space, a letter and what is behind it
local list = KEYS[1]
local read, done = {}, 0
for i = 1, #ARGV do read[ARGV[i]] = true end
local page = page_of(list, 0, #ARGV)
while done < #page and read[string.match(page[done + 1], '^[^ ]*')] do done = done + 1 end
if done > 0 then call('LTRIM', list, 0, -done - 1) end
return page_of(list, 0, 50)
