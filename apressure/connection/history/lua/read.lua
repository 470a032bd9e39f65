-- The list of a queue's history has a record for each minute in which there was something: numbers with spaces in
-- between, as `Minute.encode` in core/history.py writes them. The first one is the number of the minute.
-- KEYS: the list
-- ARGV: 1 how many records, at most
-- Returns: the latest ones, in order
return redis.call('LRANGE', KEYS[1], -tonumber(ARGV[1]), -1)
