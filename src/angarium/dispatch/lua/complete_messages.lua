#!lua
-- Guarantee: a message's result stands in the stream once: whoever finishes a message that is
-- still pending appends it and takes the message out; to all others nothing happens.
-- KEYS: 3 pending (zset), 4 payloads (hash), 5 attempts (hash), 6 results (stream)
-- ARGV: 4 consumer, 5 entries the stream keeps or 0, 6 number of messages, then for each
-- its id, how many fields and values follow, and those
-- Returns: for each 'completed' | 'duplicate'
-- Events: completed
-- Repeats: safe, the second call answers 'duplicate'
-- include: transition
local consumer, entries_max, count = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local ids, starts, at = {}, {}, 7
for i = 1, count do
  ids[i], starts[i] = ARGV[at], at + 2
  at = at + 2 + tonumber(ARGV[at + 1])
end
local scores = redis.call('ZMSCORE', KEYS[3], unpack(ids))
local statuses, finished, seen, rest = {}, {}, {}, nil
local consumer_json = cjson.encode(consumer)
for i = 1, count do
  local id = ids[i]
  if scores[i] and not seen[id] then
    seen[id] = true
    finished[#finished + 1] = id
    redis.call('XADD', KEYS[6], '*', 'message_id', id, 'consumer_id', consumer,
      unpack(ARGV, starts[i], starts[i] + tonumber(ARGV[starts[i] - 1]) - 1))
    note_row('{"e":"completed","s":"' .. id .. '","n":' .. consumer_json .. '}')
    statuses[i] = 'completed'
  else
    statuses[i] = 'duplicate'
  end
end
if #finished > 0 then
  redis.call('ZREM', KEYS[3], unpack(finished))
  redis.call('HDEL', KEYS[4], unpack(finished))
  if redis.call('EXISTS', KEYS[5]) == 1 then redis.call('HDEL', KEYS[5], unpack(finished)) end
  if entries_max > 0 then redis.call('XTRIM', KEYS[6], 'MAXLEN', '~', entries_max) end
end
journal_append('dispatch')
return statuses
