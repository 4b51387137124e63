#!lua
-- Guarantee: none; the keys of one step of a reply are touched as often as our transitions do it.
-- KEYS: 3 pendingMessages, 4 openRequests; per item: request, response, requests,
-- responses, order, ack
-- ARGV: 4 step, 5 number of items; per item: conversation id, request id, response id, task,
-- MinMessageInfo, score
-- Returns: per item the step
-- Events: none
-- Repeats: no
local step, answers = ARGV[4], {}
for item = 1, tonumber(ARGV[5]) do
  local k, a = 6 * item - 1, 6 * item
  local request, response, requests, responses, order = KEYS[k], KEYS[k + 1], KEYS[k + 2],
    KEYS[k + 3], KEYS[k + 4]
  local conversation, request_id, response_id = ARGV[a], ARGV[a + 1], ARGV[a + 2]
  local member, score = ARGV[a + 4], ARGV[a + 5]
  if step == 'request' then
    redis.call('HMGET', request, 'conversationId', 'position', 'expiresAtTS')
    redis.call('HINCRBY', order, 'n', 1)
    redis.call('HSET', request, 'conversationId', conversation, 'origin', 'bench', 'requestId',
      request_id, 'requestTimestamp', 1, 'status', 'WAITING', 'responseIdCounter', 0,
      'expiresAtTS', 1, 'position', 1)
    redis.call('PEXPIRE', request, 10000)
    redis.call('HSET', order, 'q' .. request, '1 1 0')
    redis.call('RPUSH', requests, request)
    redis.call('PEXPIRE', requests, 10000)
    redis.call('PEXPIRE', order, 910000)
    redis.call('ZADD', KEYS[4], 1, request_id)
  elseif step == 'pending' then
    redis.call('HMGET', request, 'conversationId', 'origin', 'position', 'expiresAtTS')
    redis.call('HSET', request, 'status', 'PENDING', 'responseIdCounter', 1, 'expiresAtTS', 1)
    redis.call('PEXPIRE', request, 900000)
    redis.call('HSET', response, 'conversationId', conversation, 'origin', 'bench', 'requestId',
      request_id, 'responseId', response_id, 'requestTimestamp', 1, 'responseTimestamp', 1,
      'status', 'PENDING', 'expiresAtTS', 1, 'awaitedToDateTS', 1, 'awaitedRetries', 0,
      'taskItem', ARGV[a + 3])
    redis.call('PEXPIRE', response, 900000)
    redis.call('ZADD', responses, score, member)
    redis.call('PEXPIRE', responses, 900000)
    redis.call('PEXPIRE', requests, 900000)
    redis.call('ZADD', KEYS[3], 1, member)
    redis.call('HSET', order, score, '1 P bench', 'q' .. request, '1 1 1')
    redis.call('ZREM', KEYS[4], request_id)
  elseif step == 'check' then
    redis.call('HGET', order, score)
    redis.call('ZRANGE', responses, 0, 0, 'WITHSCORES')
    redis.call('LINDEX', requests, 0)
  elseif step == 'sent' then
    redis.call('HSET', response, 'status', 'SENT', 'sentAttempt', 1, 'asyncResponseId',
      response_id, 'awaitedToDateTS', 1, 'lastAccess', 1)
    redis.call('PEXPIRE', response, 5000)
    redis.call('SET', KEYS[k + 5], member, 'PX', 5000)
    redis.call('ZADD', KEYS[3], 2, member)
    redis.call('HSET', order, score, '2 S bench')
  else
    redis.call('ZREM', responses, member)
    redis.call('ZREM', KEYS[3], member)
    redis.call('HDEL', order, score, 'q' .. request)
    redis.call('DEL', response, KEYS[k + 5])
    redis.call('LREM', requests, 1, request)
  end
  answers[item] = step
end
return answers
