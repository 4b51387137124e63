#!lua
-- Guarantee: each sleeping transaction whose time has come is queued once. Others are not read.
-- KEYS: 3 to 5 statistics, 6 stem of states, 7 sleeping, 8 stem of qOut
-- ARGV: 4 notify, 5 work, 6 count
-- Returns: the number of ids that left sleepingZ
-- Events: woken (module transactions)
-- Repeats: safe
-- include: transition
-- include: transactions
local due = redis.call('ZRANGEBYSCORE', KEYS[7], '-inf', now_text, 'LIMIT', 0, ARGV[6])
for _, id in ipairs(due) do
  local state = KEYS[6] .. id
  local found = redis.call('HMGET', state, 'status', 'label')
  if found[1] == 'sleeping' then
    redis.call('HSET', state, 'status', 'queued', 'queue', 'out', 'updated', now_text)
    local about = label(found[2])
    push(KEYS[8] .. about.group, about.group, id)
    record_event('woken', id, about)
  end
end
if #due > 0 then call_many('ZREM', KEYS[7], due) end
write_batch()
return #due
