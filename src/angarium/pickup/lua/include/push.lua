-- The push tokens of one queue, in one hash:
--   message id -> hashed token, a space, the time of arrival: a message that is neither collected nor
--     notified. It is deleted with its message.
--   ':' and the hashed token -> tries so far, a space, the notification
--   '+' and the hashed token -> the same and the id of the newest message, if more than
--     PUSH_MESSAGES_MAX messages wait
-- The set of due notifications has 'hashed token queue' with the time of the next try. Field `tokened`
-- of the queue's hash: the queue has tokens. Field `token_bytes`: their size.
local PUSH_MESSAGES_MAX = 1000

-- `push` is a hashed token, a space and the notification. The earliest time counts, so that one
-- notification stands for all messages that arrive until then. Returns the token if it is new.
local function schedule_push(meta_key, tokens_key, due_key, queue, id, push, due_ms)
  local token, body = string.match(push, '^(%S+) (.*)$')
  local at, due = string.format('%.0f', now_ms), string.format('%.0f', due_ms)
  if redis.call('HLEN', tokens_key) < PUSH_MESSAGES_MAX then
    redis.call('HSET', tokens_key, id, token .. ' ' .. at)
  else
    redis.call('HSET', tokens_key, '+' .. token, token .. ' ' .. at .. ' ' .. id)
  end
  local new = redis.call('HSETNX', tokens_key, ':' .. token, '0 ' .. body) == 1
  if new then redis.call('HINCRBY', meta_key, 'token_bytes', #body) end
  redis.call('HSET', meta_key, 'tokened', 1)
  redis.call('ZADD', due_key, 'LT', due, token .. ' ' .. queue)
  return new
end

-- The id of the newest message of the token that is not collected, or nil.
local function newest_message(tokens_key, token)
  local newest, newest_ms, all = nil, -1, redis.call('HGETALL', tokens_key)
  for i = 1, #all, 2 do
    local own, at, id = string.match(all[i + 1], '^(%S+) (%d+) ?(%S*)$')
    if own == token and string.sub(all[i], 1, 1) ~= ':' and tonumber(at) >= newest_ms then
      newest, newest_ms = id ~= '' and id or all[i], tonumber(at)
    end
  end
  return newest
end

-- Forgets the token's messages that arrived up to `until_ms`; returns whether none is left.
local function forget_messages(tokens_key, token, until_ms)
  local all, none = redis.call('HGETALL', tokens_key), true
  for i = 1, #all, 2 do
    local own, at = string.match(all[i + 1], '^(%S+) (%d+)')
    if own == token and string.sub(all[i], 1, 1) ~= ':' then
      if tonumber(at) <= until_ms then
        redis.call('HDEL', tokens_key, all[i])
      else
        none = false
      end
    end
  end
  return none
end

local function delete_token(meta_key, tokens_key, due_key, token, member)
  local size = redis.call('HSTRLEN', tokens_key, ':' .. token) - 2
  redis.call('HDEL', tokens_key, ':' .. token, '+' .. token)
  redis.call('ZREM', due_key, member)
  if redis.call('EXISTS', tokens_key) == 0 then
    redis.call('HDEL', meta_key, 'tokened', 'token_bytes')
  elseif size > 0 and redis.call('HEXISTS', meta_key, 'token_bytes') == 1 then
    redis.call('HINCRBY', meta_key, 'token_bytes', -size)
  end
end
