-- Create a queue (specification: Create), clearing what an earlier life of the name has left behind.
-- KEYS: those of the prelude, then pairs of keys of which none may exist (each the :bound of a queue that collides)
-- ARGV: 1 bound, 2 sequence, 3 '1' if this repeats a step
-- Returns: 1 | {'exists'} | {'collides', index of the key}
if ARGV[3] == '1' and recall(ARGV[2]) then return 1 end
if call('EXISTS', BOUND) == 1 then return {'exists'} end
for i = 23, #KEYS do
  if call('EXISTS', KEYS[i]) == 1 then return {'collides', i - 22} end
end
call('SET', BOUND, ARGV[1])
for i = 1, 21 do
  if i ~= 2 then call('DEL', KEYS[i]) end
end
call('LPUSH', PRODUCER.free, 1)
call('LPUSH', CONSUMER.free, 1)
call('LPUSH', NOT_FULL, 1)
record(ARGV[2], 1)
return 1
