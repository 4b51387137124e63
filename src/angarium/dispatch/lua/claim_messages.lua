#!lua
-- Guarantee: under the newest term, messages that are due (never sent, given back, rejected, or
-- not acknowledged and not renewed in time) are returned for one more delivery, the longest due
-- first. A message without further deliveries, or that does not fit into a frame, becomes a dead
-- letter instead. Unless `held_too`, messages that a worker may have stay as they are: the caller
-- gives the workers time to renew them.
-- Events: redelivered, dead
-- Repeats: no, each call returns other messages; those of a lost reply time out and are due again
-- include: transition
-- include: fence
-- include: attempts
-- include: dead_letter
if fenced_off(term_key, term) then return reply.stale end
local oldest = string.format('%.0f', now_ms - ack_timeout_ms)
local due = redis.call('ZRANGEBYSCORE', pending_key, '-inf', oldest, 'LIMIT', 0, messages_max)
if #due == 0 then return reply.claimed(0, 0, {}) end
local full, dead, messages, now = #due >= messages_max, 0, {}, string.format('%.0f', now_ms)
local attempts = redis.call('HMGET', attempts_key, unpack(due))
-- Payloads are read in parts: all of them together may take too much memory.
local PART = 25
local payloads, bytes = {}, 0
local members, first_time, failed = {}, {}, {}

local function deliver(message_id, payload, deliveries, reasons)
  deliveries = deliveries + 1
  if deliveries == 1 and reasons == '' then
    first_time[#first_time + 1] = message_id
  else
    failed[#failed + 1] = message_id
    failed[#failed + 1] = deliveries .. reasons
  end
  if deliveries > 1 then note('redelivered', message_id, { a = deliveries }) end
  local m, r = #members, #messages
  members[m + 1], members[m + 2] = now, message_id
  messages[r + 1], messages[r + 2], messages[r + 3] = message_id, payload, deliveries
end

local function claim(message_id, payload, value)
  local deliveries, holder, reasons = read_attempts(value)
  if is_held(deliveries, reasons) then
    if not held_too then return end
    local silence = ' within ' .. ack_timeout_ms .. ' ms'
    reasons = add_reason(reasons, holder == '' and 'no acknowledgement' .. silence
      or holder .. ': no renewal' .. silence)
  end
  -- A message that was retried, or accepted under a higher limit, may be too large for a frame.
  local fits = payload and #payload <= payload_bytes_max
  if not payload then
    reasons = add_reason(reasons, 'the payload is gone from Redis')
  elseif not fits then
    reasons = add_reason(reasons, 'too large, limits.frame_bytes_max is exceeded')
  end
  if fits and deliveries < deliveries_max then
    deliver(message_id, payload, deliveries, reasons)
    return
  end
  redis.call('HSET', attempts_key, message_id, deliveries .. reasons)
  dead_letter(message_id)
  note('dead', message_id, { a = deliveries })
  dead = dead + 1
end

for i, message_id in ipairs(due) do
  local place = (i - 1) % PART + 1
  if place == 1 then
    if bytes >= reply_bytes_max then
      full = true
      break
    end
    payloads = redis.call('HMGET', payloads_key, unpack(due, i, math.min(i + PART - 1, #due)))
  end
  local payload = payloads[place]
  bytes = bytes + (payload and #payload or 0)
  claim(message_id, payload, attempts[i])
end
if #members > 0 then redis.call('ZADD', pending_key, unpack(members)) end
if #first_time > 0 then redis.call('HDEL', attempts_key, unpack(first_time)) end
if #failed > 0 then redis.call('HSET', attempts_key, unpack(failed)) end
journal_append('dispatch')
return reply.claimed(full and #members + dead > 0 and 1 or 0, dead, messages)
