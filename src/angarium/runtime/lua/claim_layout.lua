#!lua
-- Guarantee: the first process records the layout of the keys; all others must use the same.
-- KEYS: 1 layout record (hash: layout_version, partitions, prefix)
-- ARGV: 1 layout_version, 2 partitions, 3 prefix
-- Returns: {'created'} | {'agreed'} | {'differs', layout_version, partitions}
-- Events: none, the journal does not exist yet

-- Repeats: safe
local found = redis.call('HMGET', KEYS[1], 'layout_version', 'partitions')
if not found[1] then
  redis.call('HSET', KEYS[1], 'layout_version', ARGV[1], 'partitions', ARGV[2], 'prefix', ARGV[3])
  return { 'created' }
end
if found[1] == ARGV[1] and found[2] == ARGV[2] then return { 'agreed' } end
return { 'differs', found[1], found[2] }
