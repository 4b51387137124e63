#!lua
-- Guarantee: under the newest term, a batch from the channel becomes pending with its payloads,
-- and its digests are recorded for the next leader. A repeated call changes nothing.
-- The caller sends the first `sent` messages; the others are due at once, oldest first.
-- Events: accepted, or refused when the partition is full; dropped for each message that is
-- dropped instead; dead for a message that does not fit into a frame
-- Repeats: safe, the first id identifies the batch
-- include: transition
-- include: fence
-- include: attempts
-- include: dead_letter
if fenced_off(term_key, term) then return reply.stale end
local first_id = item_values(1, 1)
if redis.call('HSETNX', digests_key, first_id, digests) == 0 then return reply.repeated end
redis.call('PEXPIRE', digests_key, 600000)

local accepted, key_json = item_count, cjson.encode(messages_channel)
if pending_full ~= 'drop_oldest' then
  local free = pending_messages_max - redis.call('ZCARD', pending_key)
  accepted = math.max(0, math.min(item_count, free))
end
local score_sent = string.format('%.0f', now_ms)
local score_due = string.format('%.0f', now_ms - ack_timeout_ms)
local members, unsent, too_large, item = {}, {}, {}, 0
each_item(function(message_id, payload)
  item = item + 1
  if item > accepted then
    note('refused', message_id, { k = messages_channel })
    return
  end
  members[2 * item - 1] = item <= sent and score_sent or score_due
  members[2 * item] = message_id
  note_row('{"e":"accepted","s":"' .. message_id .. '","k":' .. key_json .. '}')
  if item > sent then
    unsent[#unsent + 1] = message_id
    unsent[#unsent + 1] = 0
  end
  if #payload > payload_bytes_max then too_large[#too_large + 1] = message_id end
end)
if accepted > 0 then
  if #unsent > 0 then redis.call('HSET', attempts_key, unpack(unsent)) end
  redis.call('ZADD', pending_key, unpack(members))
  redis.call('HSET', payloads_key, item_values(1, accepted))
end
for _, message_id in ipairs(too_large) do
  dead_letter(message_id, 'too large, limits.frame_bytes_max is exceeded')
  note('dead', message_id)
end
local excess = redis.call('ZCARD', pending_key) - pending_messages_max
if pending_full == 'drop_oldest' and excess > 0 then
  for _, message_id in ipairs(redis.call('ZRANGE', pending_key, 0, excess - 1)) do
    dead_letter(message_id, 'dropped, dispatch.pending_messages_max is full')
    note('dropped', message_id, { k = messages_channel })
  end
end
journal_append('dispatch')
return reply.accepted(accepted)
