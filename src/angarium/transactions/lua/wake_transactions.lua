#!lua
-- Guarantee: each sleeping transaction whose time has come is queued once. Others are not read.
-- Events: woken (module transactions)
-- Repeats: safe
-- include: transition
-- include: transactions
local due = redis.call('ZRANGEBYSCORE', sleeping_key, '-inf', now_text, 'LIMIT', 0, limit)
for _, id in ipairs(due) do
  local state = states_stem .. id
  local found = redis.call('HMGET', state, 'status', 'label')
  if found[1] == 'sleeping' then
    redis.call('HSET', state, 'status', 'queued', 'queue', 'out', 'updated', now_text)
    local about = label(found[2])
    push(out_stem, 'out', about, id)
    record_event('woken', id, about)
  end
end
if #due > 0 then call_many('ZREM', sleeping_key, due) end
write_batch()
return reply.woken(#due)
