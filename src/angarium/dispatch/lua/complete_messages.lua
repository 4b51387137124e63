#!lua
-- Guarantee: the stream contains the result of a message once. The call that finds the message
-- pending appends the result and removes the message; all other calls change nothing.
-- KEYS: 3 pending (zset), 4 payloads (hash), 5 attempts (hash), 6 results (stream)
-- ARGV: 4 consumer, 5 entries the stream keeps or 0, 6 number of messages, then for each
-- its id, the number of fields and values, and the fields and values
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
redis.call('XLEN', KEYS[6]) -- raises an error for another type before the script changes anything
local finished, statuses = ids, {}
-- A payload exists exactly as long as its message is pending. If HDEL removed all payloads, all
-- messages are pending and no id occurs twice, so no message needs a check of its own.
if redis.call('HDEL', KEYS[4], unpack(ids)) < count then
  local scores, seen = redis.call('ZMSCORE', KEYS[3], unpack(ids)), {}
  finished = {}
  for i, id in ipairs(ids) do
    if scores[i] and not seen[id] then
      seen[id] = true
      finished[#finished + 1] = id
    else
      statuses[i] = 'duplicate'
    end
  end
end
local rest_json = '","n":' .. cjson.encode(consumer) .. '}'
for i, id in ipairs(ids) do
  if not statuses[i] then
    local start = starts[i]
    redis.call('XADD', KEYS[6], '*', 'message_id', id, 'consumer_id', consumer,
      unpack(ARGV, start, start + ARGV[start - 1] - 1))
    note_row('{"e":"completed","s":"' .. id .. rest_json)
    statuses[i] = 'completed'
  end
end
if #finished > 0 then
  redis.call('ZREM', KEYS[3], unpack(finished))
  if redis.call('EXISTS', KEYS[5]) == 1 then redis.call('HDEL', KEYS[5], unpack(finished)) end
  if entries_max > 0 then redis.call('XTRIM', KEYS[6], 'MAXLEN', '~', entries_max) end
end
journal_append('dispatch')
return statuses
