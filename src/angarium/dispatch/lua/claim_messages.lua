#!lua flags=allow-oom
-- Guarantee: under the newest term, messages that are due (never sent, given back, rejected, or
-- not acknowledged and not renewed in time) are returned for one more delivery, the longest due
-- first. A message without further deliveries, or that does not fit into a frame, becomes a dead
-- letter instead. Unless `held_too`, messages that a worker may have stay as they are: the caller
-- gives the workers time to renew them. They stay too if the call came late: Redis or the caller
-- stood still, and the renewals of live workers wait behind this call.
-- A message whose worker died several times while it had the message is a suspect: it may have
-- killed the worker, and others died with it. A claim leaves suspects out and returns their number.
-- With `suspects_max` it returns suspects alone: up to so many, or one that died more often.
-- With the name of a `queue` it returns messages that wait in this queue, the longest waiting first.
-- Without, due messages of named queues begin to wait in theirs; `named` is their number.
-- Events: redelivered, dead
-- Repeats: no, each call returns other messages; those of a lost reply time out and are due again
-- include: transition
-- include: fence
-- include: attempts
-- include: queues
-- include: dead_letter
if fenced_off(term_key, term) then return reply.stale end
local oldest = string.format('%.0f', now_ms - ack_timeout_ms)
if sent_ms > 0 and now_ms - sent_ms > ack_timeout_ms / 3 then held_too = false end
-- Pages of due messages that one claim looks at, if it leaves out all of them.
local PAGES_MAX = 4
local place_of = {}
local function due_from(skipped)
  if queue ~= '' then
    local places = redis.call('ZRANGEBYLEX', waiting_key, '[' .. queue .. '\0', '(' .. queue .. '\1',
      'LIMIT', skipped, messages_max)
    local ids = {}
    for i, place in ipairs(places) do
      ids[i] = string.match(place, '%z%d+%z(.*)$')
      place_of[ids[i]] = place
    end
    return ids
  end
  return redis.call('ZRANGEBYSCORE', pending_key, '-inf', oldest, 'LIMIT', skipped, messages_max)
end
local full, dead, messages = false, 0, {}
local now = string.format('%.0f', queue == '' and now_ms or now_ms + NAMED)
-- Payloads are read in parts: all of them together may take too much memory.
local PART = 25
local payloads, bytes, skipped, suspects, alone = {}, 0, 0, 0, false
local members, first_time, failed, named = {}, {}, {}, 0
-- Deaths from which on a message is sent with other suspects only, and with nothing else. Its last
-- delivery is always one of its own.
local DEATHS_ALONE = math.max(1, math.min(3, deliveries_max - 2))
local DEATHS_SUSPECT = math.min(2, DEATHS_ALONE)

local function deaths_in(reasons)
  if reasons == '' then return 0 end
  return select(2, string.gsub(reasons, ': no renewal within %d+ ms', ''))
end

local function deliver(message_id, payload, deliveries, reasons)
  deliveries = deliveries + 1
  if deliveries == 1 and reasons == '' then
    first_time[#first_time + 1] = message_id
  else
    failed[#failed + 1] = message_id
    failed[#failed + 1] = deliveries .. reasons
  end
  if deliveries > 1 then note('redelivered', message_id, { a = deliveries }) end
  if queue ~= '' then
    redis.call('ZREM', waiting_key, place_of[message_id])
    redis.call('HSET', queues_key, message_id, queue)
  end
  local m, r = #members, #messages
  members[m + 1], members[m + 2] = now, message_id
  messages[r + 1], messages[r + 2], messages[r + 3] = message_id, payload, deliveries
end

-- Whether this claim returns a message with so many deaths.
local function wanted(deaths)
  if deaths >= DEATHS_SUSPECT then suspects = suspects + 1 end
  if suspects_max == 0 then return deaths < DEATHS_SUSPECT end
  if deaths < DEATHS_SUSPECT or alone or #members >= 2 * suspects_max then return false end
  alone = deaths >= DEATHS_ALONE
  return not alone or #members == 0
end

-- Deliveries and reasons of a due message; nil for one that a worker may have and may renew.
local function failures(value)
  local deliveries, holder, reasons = read_attempts(value)
  if is_held(deliveries, reasons) then
    if not held_too then return nil end
    local silence = ' within ' .. ack_timeout_ms .. ' ms'
    reasons = add_reason(reasons, holder == '' and 'no acknowledgement' .. silence
      or holder .. ': no renewal' .. silence)
  end
  return deliveries, reasons
end

local function die(message_id, deliveries, reasons)
  redis.call('HSET', attempts_key, message_id, deliveries .. reasons)
  dead_letter(message_id)
  note('dead', message_id, { a = deliveries })
  dead = dead + 1
end

local function claim(message_id, payload, value)
  local deliveries, reasons = failures(value)
  if not deliveries then
    skipped = skipped + 1
    return
  end
  -- A message that was retried, or accepted under a higher limit, may be too large for a frame.
  local fits = payload and #payload <= payload_bytes_max
  if not payload then
    reasons = add_reason(reasons, 'the payload is gone from Redis')
  elseif not fits then
    reasons = add_reason(reasons, 'too large, limits.frame_bytes_max is exceeded')
  end
  if fits and deliveries < deliveries_max then
    if wanted(deaths_in(reasons)) then
      deliver(message_id, payload, deliveries, reasons)
    else
      skipped = skipped + 1
    end
    return
  end
  die(message_id, deliveries, reasons)
end

-- Due messages of named queues wait in them again, with their failures stored.
local NAMED_MAX = 100
local function wait_again()
  local ids = redis.call('ZRANGEBYSCORE', pending_key, string.format('%.0f', NAMED),
    string.format('%.0f', NAMED + now_ms - ack_timeout_ms), 'LIMIT', 0, NAMED_MAX)
  for _, message_id in ipairs(ids) do
    local deliveries, reasons = failures(redis.call('HGET', attempts_key, message_id))
    local value = redis.call('HGET', queues_key, message_id)
    if deliveries and value then
      if deliveries >= deliveries_max then
        die(message_id, deliveries, reasons)
      else
        redis.call('HSET', attempts_key, message_id, deliveries .. reasons)
        wait_in_queue(message_id, (split_queue(value)))
        named = named + 1
      end
    end
  end
  full = #ids >= NAMED_MAX and named > 0
end

local due = {}
local function claim_page()
  local attempts = redis.call('HMGET', attempts_key, unpack(due))
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
end

if queue == '' and suspects_max == 0 and have_queues() then wait_again() end
for _ = 1, messages_max > 0 and PAGES_MAX or 0 do
  due = due_from(skipped)
  if #due == 0 then break end
  claim_page()
  full = full or #due >= messages_max
  if #members > 0 or skipped == 0 or #due < messages_max then break end
end
if #members > 0 then redis.call('ZADD', pending_key, unpack(members)) end
if #first_time > 0 then redis.call('HDEL', attempts_key, unpack(first_time)) end
if #failed > 0 then redis.call('HSET', attempts_key, unpack(failed)) end
journal_append('dispatch')
return reply.claimed(full and #members + dead + named > 0 and 1 or 0, dead, suspects, named,
  now_ms, messages)
