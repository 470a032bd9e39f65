-- Create a queue (specification: Create), clearing what an earlier queue of the name left behind.
-- KEYS: those of the prelude, then pairs of keys of which none may exist (each the :bound of a queue that collides)
-- ARGV: 1 bound, 2 sequence, 3 '1' if this repeats a step
-- Returns: 1 | {'exists'} | {'collides', index of the key}
if recall(ARGV[2], ARGV[3]) then return 1 end
if call('EXISTS', BOUND) == 1 then return {'exists'} end
local other = collision(28)
if other then return {'collides', other - 27} end
make(ARGV[1])
record(ARGV[2], 1)
return 1
