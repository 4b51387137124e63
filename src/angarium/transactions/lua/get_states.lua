#!lua flags=no-writes
-- Guarantee: the states of all transactions are from the same moment.
-- Events: none
-- Repeats: safe
-- include: transition
local now_text = string.format('%.0f', now_ms)
return each_item(function(transaction_id, state_key)
  local fields = redis.call('HGETALL', state_key)
  if #fields == 0 then return reply.no_state end
  return reply.found(now_text, fields)
end)
