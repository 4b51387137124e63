#!lua
-- Guarantee: a reply that is about to be sent is noted (the first time counts), and takes the webhook
-- off the list if the transaction asked for that.
-- KEYS: 3 to 5 statistics, 6 webhooks; per item: state
-- ARGV: 4 notify, 5 work, 6 number of items; per item: id
-- Returns: per item {field, value, …}, empty when there is no such transaction
-- Events: notified, webhook_cancelled (room transactions)
-- Repeats: safe
-- include: transition
-- include: transactions
local states = {}
for item = 1, tonumber(ARGV[6]) do
  local id, state = ARGV[6 + item], KEYS[6 + item]
  local values, fields = redis.call('HGETALL', state), {}
  for place = 1, #values, 2 do fields[values[place]] = values[place + 1] end
  if fields.status and FINAL[fields.status] then
    local about = label(fields.label)
    if not fields.notified then
      redis.call('HSET', state, 'notified', now_text)
      values[#values + 1] = 'notified'
      values[#values + 1] = now_text
      tell('notified', id, about)
    end
    if string.find(fields.options or '', 'c', 1, true) and redis.call('ZREM', KEYS[6], id) == 1 then
      tell('webhook_cancelled', id, about)
    end
  end
  states[item] = values
end
settle()
return states
