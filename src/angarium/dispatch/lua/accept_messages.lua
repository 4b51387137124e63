#!lua
-- Guarantee: under the newest term, a batch from the channel becomes pending with its payloads,
-- and its digests are recorded for the next leader. A repeated call changes nothing.
-- The caller sends the first `sent` messages; the others are due at once, oldest first. What does
-- not fit into a full partition goes to the durable intake, or is refused if that is full too.
-- The messages of a named queue wait for its workers; nothing of them is sent.
-- A full journal refuses all, by setting, and has no space for events about it.
-- Events: accepted; enqueued or refused when the partition is full; dropped for each message that
-- is dropped instead; dead for a message that does not fit into a frame
-- Repeats: safe, the first id identifies the batch
-- include: transition
-- include: fence
-- include: attempts
-- include: queues
-- include: dead_letter
if fenced_off(term_key, term) then return reply.stale end
local first_id = item_values(1, 1)
if redis.call('HSETNX', digests_key, first_id, digests) == 0 then return reply.repeated end
redis.call('PEXPIRE', digests_key, 600000)

local accepted, spilled = item_count, 0
local inbox_free
local function spill(message_id, payload)
  if pending_full ~= 'spill' then return false end
  inbox_free = inbox_free or inbox_messages_max - redis.call('XLEN', inbox_key)
  if inbox_free <= spilled or #payload > payload_bytes_max then return false end
  spilled = spilled + 1
  if queue == '' then
    redis.call('XADD', inbox_key, '*', 'message_id', message_id, 'payload', payload)
  else
    redis.call('XADD', inbox_key, '*', 'message_id', message_id, 'payload', payload, 'queue', queue)
  end
  note('enqueued', message_id)
  return true
end
local journal_full = journal_is_full()
if pending_full ~= 'drop_oldest' then
  local free = pending_messages_max - redis.call('ZCARD', pending_key)
  accepted = math.max(0, math.min(item_count, free))
end
if journal_full then accepted = 0 end
local score_sent = string.format('%.0f', now_ms)
local score_due = string.format('%.0f', now_ms - ack_timeout_ms)
local ids, payloads = item_column(1), item_column(2)
for item = accepted + 1, item_count do
  if not journal_full and not spill(ids[item], payloads[item]) then
    note('refused', ids[item], { k = messages_channel })
  end
  ids[item] = nil
end
local members, unsent, too_large = {}, {}, {}
for item, message_id in ipairs(ids) do
  members[2 * item - 1] = item <= sent and score_sent or score_due
  members[2 * item] = message_id
  if item > sent then
    unsent[#unsent + 1] = message_id
    unsent[#unsent + 1] = 0
  end
  if #payloads[item] > payload_bytes_max then too_large[#too_large + 1] = message_id end
end
note_each('accepted', ids, '","k":' .. cjson.encode(messages_channel) .. '}')
if accepted > 0 then
  if #unsent > 0 then redis.call('HSET', attempts_key, unpack(unsent)) end
  redis.call('ZADD', pending_key, unpack(members))
  redis.call('HSET', payloads_key, item_values(1, accepted))
  if queue ~= '' then
    for _, message_id in ipairs(ids) do wait_in_queue(message_id, queue) end
  end
end
for _, message_id in ipairs(too_large) do
  dead_letter(message_id, 'too large, limits.frame_bytes_max is exceeded')
  note('dead', message_id)
end
if pending_full == 'drop_oldest' then
  local excess = redis.call('ZCARD', pending_key) - pending_messages_max
  local oldest = excess > 0 and redis.call('ZRANGE', pending_key, 0, excess - 1) or {}
  for _, message_id in ipairs(oldest) do
    dead_letter(message_id, 'dropped, dispatch.pending_messages_max is full')
    note('dropped', message_id, { k = messages_channel })
  end
end
journal_append('dispatch')
return reply.accepted(accepted, spilled)
