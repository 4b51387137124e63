#!lua
-- Guarantee: a message taken is lent to one deliverer until its time is up, then to another.
-- Loans that ran out come first; retries that are due and new messages share the rest.
-- KEYS: 3 outbound list, 4 retries, 5 taken (hash: loan -> message), 6 loans (by when they end)
-- ARGV: 4 messages_max, 5 loan_ms, 6 bytes_max; the last message taken may go over it
-- Returns: loan, message, loan, message, …
-- Events: none
-- Repeats: no, what a lost reply named comes back when its time is up
-- include: transition
local messages_max, bytes_max, found, bytes = tonumber(ARGV[4]), tonumber(ARGV[6]), {}, 0

local function lend(message)
  bytes = bytes + #message
  local loan = string.format('%.0f', redis.call('HINCRBY', KEYS[5], 'last', 1))
  redis.call('HSET', KEYS[5], loan, message)
  redis.call('ZADD', KEYS[6], now_ms + tonumber(ARGV[5]), loan)
  found[#found + 1] = loan
  found[#found + 1] = message
end

local ended = redis.call('ZRANGEBYSCORE', KEYS[6], '-inf', now_ms, 'LIMIT', 0, messages_max)
for _, loan in ipairs(ended) do
  if bytes >= bytes_max then break end
  local message = redis.call('HGET', KEYS[5], loan)
  redis.call('HDEL', KEYS[5], loan)
  redis.call('ZREM', KEYS[6], loan)
  if message then lend(message) end
end

local function lend_retries(module)
  if module <= 0 then return end
  for _, message in ipairs(redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', now_ms / 1000,
      'LIMIT', 0, module)) do
    if bytes >= bytes_max then return end
    redis.call('ZREM', KEYS[4], message)
    lend(message)
  end
end

-- Half of the module at first, so that retries without end do not keep new messages waiting.
lend_retries(math.ceil((messages_max - #found / 2) / 2))
while #found / 2 < messages_max and bytes < bytes_max do
  local message = redis.call('LPOP', KEYS[3])
  if not message then break end
  lend(message)
end
lend_retries(messages_max - #found / 2)
return found
