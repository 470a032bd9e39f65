-- Look at dead letters, the oldest first. Writes nothing.
-- KEYS: those of the prelude
-- ARGV: 1 how many to pass over, 2 the most to return (up to about 1 MiB of them)
-- Returns: {'letters', {them, as `read_letter` says}}
return {'letters', page_of(DEAD, tonumber(ARGV[1]), tonumber(ARGV[2]))}
