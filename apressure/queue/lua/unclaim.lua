-- Give back a role's token that a waiter claimed for an operation which has been cancelled since.
-- KEYS: those of the prelude
-- ARGV: 1 role
-- Returns: 1
unclaim(ARGV[1] == 'producer' and PRODUCER or CONSUMER, '1')
return 1
