#!lua flags=no-writes
-- Guarantee: returns the oldest messages of keys that the instance owns, in order; they stay in their
-- lists until finished. Returns the first whatever its size, the others within bytes_max.
-- Events: none
-- Repeats: safe
-- include: transition
-- include: session
local owners, first = {}, true
local lost = superseded(uid, session)
for start = 1, lost and 0 or item_count, 1000 do
  local last = math.min(item_count, start + 999)
  for _, owner in ipairs(redis.call('HMGET', owners_key, item_values(start, last))) do
    owners[#owners + 1] = owner
  end
end
-- Few messages were tried before, so the function is created on first use.
local some_tried, record_of_key = redis.call('EXISTS', attempts_key) == 1, nil
if some_tried then
-- include: attempts
  record_of_key = record_of
end
local at, bytes_left, CHUNK = 0, bytes_max, 4

-- The first message alone, with what is known of earlier attempts.
local function tried(record, list_key)
  local message = redis.call('LINDEX', list_key, 0)
  if not message then return reply.taken({}) end
  if not first and #message > bytes_left then
    bytes_left = 0
    return reply.later
  end
  bytes_left, first = bytes_left - #message, false
  return reply.tried(message, record.id, record.attempts, math.max(0, record.due_ms - now_ms),
    record.reason)
end

return each_item(function(recip_key, list_key)
  at = at + 1
  if owners[at] ~= uid then return reply.not_owner end
  if bytes_left <= 0 then return reply.later end
  local record = some_tried and record_of_key(recip_key)
  if record then return tried(record, list_key) end
  local messages, place, full = {}, 0, false
  while place < messages_max and not full do
    -- Few at a time, because they may be large.
    local some = redis.call('LRANGE', list_key, place, math.min(place + CHUNK, messages_max) - 1)
    for _, message in ipairs(some) do
      full = not first and #message > bytes_left
      if full then break end
      messages[#messages + 1] = message
      bytes_left, first = bytes_left - #message, false
    end
    place, full = place + CHUNK, full or #some < CHUNK
  end
  if #messages == 0 and redis.call('EXISTS', list_key) == 1 then
    bytes_left = 0
    return reply.later
  end
  return reply.taken(messages)
end)
