#!lua
-- Guarantee: a switch wakes a transaction that sleeps until it is set, once. Otherwise the switch is
-- stored, so a later sleep until this switch ends at once.
-- Events: switched, woken (module transactions)
-- Repeats: safe
-- include: transition
-- include: transactions
local function is_full(switches)
  local count = 0
  for _ in pairs(switches) do count = count + 1 end
  return count >= switches_max
end

-- Stores the switch until the next dequeue gives it to a node.
local function remember(state, unseen, switch)
  if not string.find(' ' .. (unseen or '') .. ' ', ' ' .. switch .. ' ', 1, true) then
    redis.call('HSET', state, 'unseen', (unseen and unseen .. ' ' or '') .. switch)
  end
end

local statuses = each_item(function(transaction_id, switch, value, state_key)
  local found = redis.call('HMGET', state_key, 'status', 'label', 'switches', 'unseen', 'switch')
  if not found[1] then return reply.no_state end
  if FINAL[found[1]] then return reply.finished end
  local about, switches = label(found[2]), found[3] and cjson.decode(found[3]) or {}
  if not switches[switch] and is_full(switches) then return reply.too_many end
  switches[switch] = value
  redis.call('HSET', state_key, 'switches', cjson.encode(switches), 'updated', now_text, 'more', 1)
  record_event('switched', transaction_id, about, '"d":' .. cjson.encode(switch))
  if found[1] ~= 'sleeping' or found[5] ~= switch then
    remember(state_key, found[4], switch)
    return reply.set
  end
  redis.call('HSET', state_key, 'status', 'queued', 'queue', 'out')
  redis.call('ZREM', sleeping_key, transaction_id)
  push(out_stem, 'out', about, transaction_id)
  record_event('woken', transaction_id, about)
  return reply.woken
end)
write_batch()
return statuses
