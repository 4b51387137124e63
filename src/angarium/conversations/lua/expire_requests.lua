#!lua
-- Guarantee: a request that expired without a reply gets one event and is removed from the list of its
-- conversation.
-- KEYS: 3–6 as in the include; per item: request, requests, order
-- ARGV: 4–11 as in the include, 12 number of items; per item: conversation id, request id,
-- MinMessageInfo
-- Returns: per item {'expired'} | {'open'}: the id was opened again | {'gone'}
-- Events: request_expired (module conversations)
-- Repeats: safe, the second call returns 'gone'
-- include: transition
-- include: conversation
local answers = {}
for item = 1, items do
  local k, a = 4 + 3 * item, 10 + 3 * item
  local request, requests, order = KEYS[k], KEYS[k + 1], KEYS[k + 2]
  local over_at = tonumber(redis.call('ZSCORE', KEYS[4], ARGV[a + 2]) or nil)
  if not over_at then
    answers[item] = { 'gone' }
  elseif over_at > tonumber(seconds(now_ms)) then
    answers[item] = { 'open' }
  else
    redis.call('ZREM', KEYS[4], ARGV[a + 2])
    note('request_expired', ARGV[a + 1], { k = ARGV[a] })
    local position, _, answered = read_request_entry(order, request)
    if position and not answered then
      redis.call('HDEL', order, 'q' .. request)
      redis.call('LREM', requests, 1, request)
    end
    answers[item] = { 'expired' }
  end
end
journal_append('conversations')
return answers
