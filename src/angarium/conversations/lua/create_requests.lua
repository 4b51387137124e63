#!lua
-- Guarantee: a request is registered once and gets the next position of its conversation.
-- KEYS: 3–6 as in the include; per item: request, requests, order
-- ARGV: 4–11 as in the include, 12 number of items; per item: conversation id, origin, request
-- id, request timestamp, correlator, MinMessageInfo of the request
-- Returns: per item {'created', position} | {'duplicate', position} | {'taken'} | {'full'}
-- Events: requested; request_expired for an expired request of the same id (module conversations)
-- Repeats: safe, idempotent by request id
-- include: transition
-- include: conversation
local function create(request, requests, order, a, former)
  local conversation, origin, request_id = ARGV[a], ARGV[a + 1], ARGV[a + 2]
  local position = redis.call('HINCRBY', order, 'n', 1)
  local until_ms = now_ms + message_ttl
  local entry = position .. ' ' .. integer(until_ms) .. ' 0'
  if redis.call('HSET', order, 'q' .. request, entry) == 0 then
    redis.call('LREM', requests, 0, request) -- an expired request of the same id
  end
  local length = redis.call('RPUSH', requests, request)
  if length > requests_max or position > POSITIONS_MAX then
    redis.call('RPOP', requests)
    redis.call('HDEL', order, 'q' .. request)
    redis.call('HINCRBY', order, 'n', -1)
    return { 'full' }
  end
  if former then redis.call('DEL', request) end
  redis.call('HSET', request, 'conversationId', conversation, 'origin', origin,
    'requestId', request_id, 'requestTimestamp', ARGV[a + 3], 'status', 'WAITING',
    'responseIdCounter', 0, 'expiresAtTS', seconds(until_ms), 'position', position,
    'corr', ARGV[a + 4])
  redis.call('PEXPIRE', request, message_ttl)
  -- A list with answered requests has a longer expiry, which must not be shortened.
  if length == 1 then
    redis.call('PEXPIRE', requests, message_ttl)
  else
    redis.call('PEXPIRE', requests, message_ttl, 'GT')
  end
  redis.call('PEXPIRE', order, message_ttl + awaited_ttl)
  if redis.call('ZADD', KEYS[4], seconds(until_ms), ARGV[a + 5]) == 0 then
    note('request_expired', request_id, { k = conversation })
  end
  note('requested', request_id, { k = conversation, o = origin })
  return { 'created', position }
end

local answers = {}
for item = 1, items do
  local k, a = 4 + 3 * item, 7 + 6 * item
  local request, requests, order = KEYS[k], KEYS[k + 1], KEYS[k + 2]
  local conversation = ARGV[a]
  local found = redis.call('HMGET', request, 'conversationId', 'position', 'expiresAtTS')
  if found[1] and tonumber(found[3]) * 1000 > now_ms then
    answers[item] = found[1] == conversation and { 'duplicate', tonumber(found[2]) } or { 'taken' }
  else
    answers[item] = create(request, requests, order, a, found[1])
  end
end
journal_append('conversations')
return answers
