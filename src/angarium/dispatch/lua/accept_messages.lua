#!lua
-- Guarantee: under the newest term, a batch from the channel becomes pending with its payloads,
-- and its digests are recorded for the next leader. A repeated call changes nothing.
-- The caller sends the first `sent` messages; the others are due at once, oldest first.
-- KEYS: 3 term counter, 4 pending (zset), 5 payloads (hash), 6 attempts (hash), 7 digests (hash),
-- 8 dead letters (stream)
-- ARGV: 4 term, 5 ack_timeout_ms, 6 pending_messages_max, 7 policy when full, 8 channel,
-- 9 sent, 10 digests of the batch, 11 payload_bytes_max of a frame, 12 number of messages, then
-- id and payload of each
-- Returns: {'accepted', accepted} | {'repeated'} | {'stale'} a newer term exists
-- Events: accepted, or refused when the partition is full; dropped for each message that is
-- dropped instead; dead for a message that does not fit into a frame
-- Repeats: safe, the first id identifies the batch
-- include: transition
-- include: fence
-- include: dead_letter
if fenced_off(KEYS[3], ARGV[4]) then return { 'stale' } end
local sent, bytes_max, count = tonumber(ARGV[9]), tonumber(ARGV[11]), tonumber(ARGV[12])
local first = 13
if redis.call('HSETNX', KEYS[7], ARGV[first], ARGV[10]) == 0 then return { 'repeated' } end
redis.call('PEXPIRE', KEYS[7], 600000)

local accepted, messages_max = count, tonumber(ARGV[6])
if ARGV[7] ~= 'drop_oldest' then
  accepted = math.max(0, math.min(count, messages_max - redis.call('ZCARD', KEYS[4])))
  for i = accepted, count - 1 do note('refused', ARGV[first + 2 * i], { k = ARGV[8] }) end
end
if accepted > 0 then
  local score_sent = string.format('%.0f', now_ms)
  local score_due = string.format('%.0f', now_ms - tonumber(ARGV[5]))
  local members, unsent, key_json = {}, {}, cjson.encode(ARGV[8])
  for i = 0, accepted - 1 do
    local id = ARGV[first + 2 * i]
    members[2 * i + 1] = i < sent and score_sent or score_due
    members[2 * i + 2] = id
    note_row('{"e":"accepted","s":"' .. id .. '","k":' .. key_json .. '}')
    if i >= sent then
      unsent[#unsent + 1] = id
      unsent[#unsent + 1] = 0
    end
  end
  if #unsent > 0 then redis.call('HSET', KEYS[6], unpack(unsent)) end
  redis.call('ZADD', KEYS[4], unpack(members))
  redis.call('HSET', KEYS[5], unpack(ARGV, first, first + 2 * accepted - 1))
  for i = 0, accepted - 1 do
    if #ARGV[first + 2 * i + 1] > bytes_max then
      local id = ARGV[first + 2 * i]
      dead_letter(KEYS[4], KEYS[5], KEYS[6], KEYS[8], id,
        'too large, limits.frame_bytes_max is exceeded')
      note('dead', id)
    end
  end
end
local excess = redis.call('ZCARD', KEYS[4]) - messages_max
if ARGV[7] == 'drop_oldest' and excess > 0 then
  for _, id in ipairs(redis.call('ZRANGE', KEYS[4], 0, excess - 1)) do
    dead_letter(KEYS[4], KEYS[5], KEYS[6], KEYS[8], id,
      'dropped, dispatch.pending_messages_max is full')
    note('dropped', id, { k = ARGV[8] })
  end
end
journal_append('dispatch')
return { 'accepted', accepted }
