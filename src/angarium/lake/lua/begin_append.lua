#!lua
-- Guarantee: a batch of a writer has one set of staged lists, the first that was named for it; a
-- batch that is repeated with other lists goes on with those.
-- KEYS: 1 writer (hash), 2… staged lists of this try
-- ARGV: 1 batch
-- Returns: {'begun' | 'resumed', list, …} | {'already'} | {'unfinished', batch}
-- Events: none
-- Repeats: safe
local batch = tonumber(ARGV[1])
local found = redis.call('HMGET', KEYS[1], 'committed', 'batch', 'lists')
if found[1] and tonumber(found[1]) >= batch then return { 'already' } end
if found[2] then
  if tonumber(found[2]) ~= batch then return { 'unfinished', found[2] } end
  local reply = { 'resumed' }
  for _, list in ipairs(cmsgpack.unpack(found[3])) do reply[#reply + 1] = list end
  return reply
end
local lists = {}
for index = 2, #KEYS do
  lists[#lists + 1] = KEYS[index]
  -- From here on they are part of the batch, and wait as long as it does.
  redis.call('PERSIST', KEYS[index])
end
redis.call('HSET', KEYS[1], 'batch', ARGV[1], 'lists', cmsgpack.pack(lists))
return { 'begun', unpack(lists) }
