#!lua
-- Guarantee: under the newest term, messages that are due (never sent, given back, rejected, or
-- timed out) are returned for one more delivery, the longest due first. A message without further
-- deliveries, or that does not fit into a frame, becomes a dead letter instead.
-- KEYS: 3 term counter, 4 pending (zset), 5 payloads (hash), 6 attempts (hash), 7 dead letters
-- ARGV: 4 term, 5 ack_timeout_ms, 6 deliveries_max, 7 number of messages at most,
-- 8 payload_bytes_max of a frame, 9 bytes of payloads after which no more are returned
-- Returns: {'claimed', messages examined, dead, id, payload, delivery, id, …} | {'stale'}
-- Events: redelivered, dead
-- Repeats: no, each call returns other messages; those of a lost reply time out and are due again
-- include: transition
-- include: fence
-- include: dead_letter
if fenced_off(KEYS[3], ARGV[4]) then return { 'stale' } end
local ack_timeout_ms, deliveries_max = tonumber(ARGV[5]), tonumber(ARGV[6])
local bytes_max = tonumber(ARGV[8])
local due = redis.call('ZRANGEBYSCORE', KEYS[4], '-inf',
  string.format('%.0f', now_ms - ack_timeout_ms), 'LIMIT', 0, ARGV[7])
local reply, dead, now = { 'claimed', #due, 0 }, 0, string.format('%.0f', now_ms)
if #due == 0 then return reply end
local attempts = redis.call('HMGET', KEYS[6], unpack(due))
-- Payloads are read in parts: all of them together may take too much memory.
local PART = 25
local payloads, bytes, bytes_enough = {}, 0, tonumber(ARGV[9])
local members, first_time, failed = {}, {}, {}
for i, id in ipairs(due) do
  local place = (i - 1) % PART + 1
  if place == 1 then
    if bytes >= bytes_enough then
      reply[2] = tonumber(ARGV[7])
      break
    end
    payloads = redis.call('HMGET', KEYS[5], unpack(due, i, math.min(i + PART - 1, #due)))
  end
  local payload = payloads[place]
  bytes = bytes + (payload and #payload or 0)
  local count, reasons = parse_attempts(attempts[i])
  -- A rejection wrote its own reason; a time-out wrote none. So fewer reasons than deliveries mean
  -- that the last delivery timed out.
  if count > 0 and select(2, string.gsub(reasons, '\n', '')) < count then
    reasons = reasons .. '\nno acknowledgement within ' .. ack_timeout_ms .. ' ms'
  end
  -- A message that was retried, or accepted under a higher limit, may be too large for a frame.
  local fits = payload and #payload <= bytes_max
  if not payload then
    reasons = reasons .. '\nthe payload is gone from Redis'
  elseif not fits then
    reasons = reasons .. '\ntoo large, limits.frame_bytes_max is exceeded'
  end
  if count >= deliveries_max or not fits then
    redis.call('HSET', KEYS[6], id, count .. reasons)
    dead_letter(KEYS[4], KEYS[5], KEYS[6], KEYS[7], id)
    note('dead', id, { a = count })
    dead = dead + 1
  else
    count = count + 1
    if count == 1 and reasons == '' then
      first_time[#first_time + 1] = id
    else
      failed[#failed + 1] = id
      failed[#failed + 1] = count .. reasons
    end
    if count > 1 then note('redelivered', id, { a = count }) end
    local m, r = #members, #reply
    members[m + 1], members[m + 2] = now, id
    reply[r + 1], reply[r + 2], reply[r + 3] = id, payload, count
  end
end
if #members > 0 then redis.call('ZADD', KEYS[4], unpack(members)) end
if #first_time > 0 then redis.call('HDEL', KEYS[6], unpack(first_time)) end
if #failed > 0 then redis.call('HSET', KEYS[6], unpack(failed)) end
reply[3] = dead
journal_append('dispatch')
return reply
