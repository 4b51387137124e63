-- Messages of named queues. A message of the unnamed queue has no record, so it costs nothing here.
--   queues   hash: message id → queue, and behind a zero byte the place in `waiting` while it waits
--   waiting  sorted set, all scores 0: queue, time, message id, separated by zero bytes, so that
--            the order of the members is the order of waiting within each queue
-- A message that waits is pending, with a score that is never due: `claim_messages` with the name of
-- the queue takes it from `waiting`. One that was sent has NAMED added to its score, so that it is
-- not behind the due messages of the unnamed queue.
local NAMED = 1e15
local NEVER_DUE = '9007199254740991'
local queues_exist
local function have_queues()
  if queues_exist == nil then queues_exist = redis.call('EXISTS', queues_key) == 1 end
  return queues_exist
end

local function split_queue(value)
  local zero = string.find(value, '\0', 1, true)
  return zero and string.sub(value, 1, zero - 1) or value, zero ~= nil
end

-- The score of a pending message that is sent, or due, at a time.
local function pending_score(message_id, at_ms)
  if have_queues() and redis.call('HEXISTS', queues_key, message_id) == 1 then
    at_ms = at_ms + NAMED
  end
  return string.format('%.0f', at_ms)
end

-- The message waits for a worker of its queue.
local function wait_in_queue(message_id, queue)
  local place = queue .. '\0' .. string.format('%015.0f', now_ms)
  redis.call('HSET', queues_key, message_id, place)
  redis.call('ZADD', waiting_key, 0, place .. '\0' .. message_id)
  redis.call('ZADD', pending_key, NEVER_DUE, message_id)
  queues_exist = true
end

-- The message has ended: forget its queue. Returns the name of the queue, or nil.
local function leave_queue(message_id)
  if not have_queues() then return nil end
  local value = redis.call('HGET', queues_key, message_id)
  if not value then return nil end
  local queue, waits = split_queue(value)
  if waits then redis.call('ZREM', waiting_key, value .. '\0' .. message_id) end
  redis.call('HDEL', queues_key, message_id)
  return queue
end
