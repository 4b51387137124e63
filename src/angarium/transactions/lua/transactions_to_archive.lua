#!lua
-- Guarantee: one node at a time leases completed transactions whose delay is over. A transaction
-- leaves Redis only when that node reports it as stored, and is not leased while a webhook is due.
-- KEYS: 3 to 5 statistics, 6 toArchive, 7 webhooks, 8 lock1, 9 lock2, 10 stem of states
-- ARGV: 4 notify, 5 work, 6 node, 7 lock1_ms, 8 lock2_ms, 9 count, 10 number of ids stored; the ids;
-- then the state of the holder ('' | 'idle' | 'leaving', see role)
-- Returns: {'granted' | 'working' | 'grace' | 'refused', {id, field, value, …}, …}
-- Events: archived, dropped (module transactions)
-- Repeats: safe, a stored transaction is removed once, and a leased one stays in toArchiveZ
-- include: transition
-- include: transactions
-- include: grant
-- include: role
-- The limit of one reply, so that large states do not fill the memory of Redis and the archiver.
local REPLY_BYTES_MAX = 16 * 1024 * 1024
local removed = {}
for index = 11, 10 + tonumber(ARGV[10]) do
  local id = ARGV[index]
  local state = KEYS[10] .. id
  local found = redis.call('HMGET', state, 'label', 'status')
  if found[2] and FINAL[found[2]] then
    redis.call('DEL', state)
    removed[#removed + 1] = id
    record_event('archived', id, label(found[1]))
  end
end
local holder_state = ARGV[11 + tonumber(ARGV[10])]
local reply = { ask_role(KEYS[8], KEYS[9], ARGV[6], ARGV[7], ARGV[8], holder_state) }
local count = (reply[1] == 'granted' or reply[1] == 'working') and tonumber(ARGV[9]) or 0
if #removed > 0 then call_many('ZREM', KEYS[6], removed) end
local due = count > 0
  and redis.call('ZRANGEBYSCORE', KEYS[6], '-inf', now_text, 'LIMIT', 0, count) or {}
local bytes = 0
for _, id in ipairs(due) do
  if bytes > REPLY_BYTES_MAX then break end
  local attempt_ms = redis.call('ZSCORE', KEYS[7], id)
  if attempt_ms then
    -- Checked again after the attempt, so that it does not block the transactions behind it.
    redis.call('ZADD', KEYS[6], math.max(now_ms, tonumber(attempt_ms)) + 1000, id)
  else
    local state = redis.call('HGETALL', KEYS[10] .. id)
    if #state == 0 then
      redis.call('ZREM', KEYS[6], id)
      record_event('dropped', id, label('-|-|-'), '"d":"no_state"')
    else
      for _, value in ipairs(state) do bytes = bytes + #value end
      table.insert(state, 1, id)
      reply[#reply + 1] = state
    end
  end
end
write_batch()
return reply
