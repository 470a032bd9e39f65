-- Give back a role's token that was claimed for an operation which has ended.
-- KEYS: those of the prelude
-- ARGV: 1 role
-- Returns: 1
unclaim(ARGV[1] == 'producer' and PRODUCER or CONSUMER, '1')
return 1
