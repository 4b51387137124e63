#!lua flags=allow-oom
-- Guarantee: the stream contains the result of a message once. The call that finds the message
-- pending appends the result and removes the message, whoever holds it; all other calls change
-- nothing.
-- Events: completed
-- Repeats: safe, the second call answers 'duplicate'
-- include: transition
-- include: queues
local ids, firsts, lasts, count = {}, {}, {}, 0
each_item(function(message_id, fields_first, fields_last)
  count = count + 1
  ids[count], firsts[count], lasts[count] = message_id, fields_first, fields_last
end)
redis.call('XLEN', results_key) -- raises an error for another type before anything changes
local finished, statuses = ids, {}
-- A payload exists exactly as long as its message is pending. If HDEL removed all payloads, all
-- messages are pending and no id occurs twice, so no message needs a check of its own.
if redis.call('HDEL', payloads_key, unpack(ids)) < count then
  local scores, seen = redis.call('ZMSCORE', pending_key, unpack(ids)), {}
  finished = {}
  for i, message_id in ipairs(ids) do
    if scores[i] and not seen[message_id] then
      seen[message_id] = true
      finished[#finished + 1] = message_id
    else
      statuses[i] = reply.duplicate
    end
  end
end
for i, message_id in ipairs(ids) do
  if not statuses[i] then
    redis.call('XADD', results_key, '*', 'message_id', message_id, 'consumer_id', consumer,
      argument_values(firsts[i], lasts[i]))
    statuses[i] = reply.completed
  end
end
note_each('completed', finished, '","n":' .. cjson.encode(consumer) .. '}')
if #finished > 0 then
  redis.call('ZREM', pending_key, unpack(finished))
  if redis.call('EXISTS', attempts_key, queues_key) > 0 then -- seldom, and one question for both
    redis.call('HDEL', attempts_key, unpack(finished))
    for _, message_id in ipairs(finished) do leave_queue(message_id) end
  end
  if stream_entries_max > 0 then
    redis.call('XTRIM', results_key, 'MAXLEN', '~', stream_entries_max)
  end
end
journal_append('dispatch')
return statuses
