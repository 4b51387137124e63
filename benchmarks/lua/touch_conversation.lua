#!lua
-- Guarantee: none; the keys of one step of a reply are touched as often as our transitions do it.
-- Events: none
-- Repeats: no
return each_item(function(conversation_id, request_id, response_id, async_request_id, task, member,
  score, request_key, response_key, requests_key, responses_key, order_key, ack_key)
  local request, response, requests, responses, order = request_key, response_key, requests_key,
    responses_key, order_key
  if step == 'request' then
    redis.call('HMGET', request, 'conversationId', 'position', 'expiresAtTS')
    redis.call('HINCRBY', order, 'n', 1)
    redis.call('HSET', request, 'conversationId', conversation_id, 'origin', 'bench', 'requestId',
      request_id, 'requestTimestamp', 1, 'status', 'WAITING', 'responseIdCounter', 0,
      'expiresAtTS', 1, 'position', 1)
    redis.call('PEXPIRE', request, 10000)
    redis.call('HSET', order, 'q' .. request, '1 1 0')
    redis.call('RPUSH', requests, request)
    redis.call('PEXPIRE', requests, 10000)
    redis.call('PEXPIRE', order, 910000)
    redis.call('ZADD', open_key, 1, request_id)
  elseif step == 'pending' then
    redis.call('HMGET', request, 'conversationId', 'origin', 'position', 'expiresAtTS')
    redis.call('HSET', request, 'status', 'PENDING', 'responseIdCounter', 1, 'expiresAtTS', 1)
    redis.call('PEXPIRE', request, 900000)
    redis.call('HSET', response, 'conversationId', conversation_id, 'origin', 'bench', 'requestId',
      request_id, 'responseId', response_id, 'requestTimestamp', 1, 'responseTimestamp', 1,
      'status', 'PENDING', 'expiresAtTS', 1, 'awaitedToDateTS', 1, 'awaitedRetries', 0,
      'taskItem', task)
    redis.call('PEXPIRE', response, 900000)
    redis.call('ZADD', responses, score, member)
    redis.call('PEXPIRE', responses, 900000)
    redis.call('PEXPIRE', requests, 900000)
    redis.call('ZADD', pending_key, 1, member)
    redis.call('HSET', order, score, '1 P bench', 'q' .. request, '1 1 1')
    redis.call('ZREM', open_key, request_id)
  elseif step == 'check' then
    redis.call('HGET', order, score)
    redis.call('ZRANGE', responses, 0, 0, 'WITHSCORES')
    redis.call('LINDEX', requests, 0)
  elseif step == 'sent' then
    redis.call('HSET', response, 'status', 'SENT', 'sentAttempt', 1, 'asyncResponseId',
      response_id, 'awaitedToDateTS', 1, 'lastAccess', 1)
    redis.call('PEXPIRE', response, 5000)
    redis.call('SET', ack_key, member, 'PX', 5000)
    redis.call('ZADD', pending_key, 2, member)
    redis.call('HSET', order, score, '2 S bench')
  else
    redis.call('ZREM', responses, member)
    redis.call('ZREM', pending_key, member)
    redis.call('HDEL', order, score, 'q' .. request)
    redis.call('DEL', response, ack_key)
    redis.call('LREM', requests, 1, request)
  end
  return reply[step]
end)
