#!lua
-- Guarantee: one node at a time leases completed transactions whose delay is over. A transaction
-- leaves Redis only when that node reports it as stored, and is not leased while a webhook is due.
-- Events: archived, dropped (module transactions)
-- Repeats: safe, a stored transaction is removed once, and a leased one stays in toArchiveZ
-- include: transition
-- include: transactions
-- include: grant
-- include: role
-- The limit of one reply, so that large states do not fill the memory of Redis and the archiver.
local REPLY_BYTES_MAX = 16 * 1024 * 1024
local removed = {}
each_item(function(transaction_id, state_key)
  local found = redis.call('HMGET', state_key, 'label', 'status', 'externalId', 'created',
    'charged')
  if found[2] and FINAL[found[2]] then
    redis.call('DEL', state_key)
    if found[3] and external_ms > 0 then
      local about = label(found[1])
      local key = externals_stem .. about.owner .. '|' .. found[3]
      local left_ms = math.max(1, tonumber(found[4]) + external_ms - now_ms)
      if redis.call('GET', key) == transaction_id then redis.call('PEXPIRE', key, left_ms) end
    end
    if found[5] then
      local quota_key = quota_stem .. label(found[1]).owner
      if redis.call('HINCRBY', quota_key, 'bytes', -found[5]) <= 0 then
        redis.call('HDEL', quota_key, 'bytes')
        redis.call('EXPIRE', quota_key, 60)
      end
    end
    removed[#removed + 1] = transaction_id
    record_event('archived', transaction_id, label(found[1]))
  end
end)
local grant = ask_role(lock1_key, lock2_key, node, lock1_ms, lock2_ms, holder_state)
local count = (grant == 'granted' or grant == 'working') and limit or 0
if #removed > 0 then
  call_many('ZREM', to_archive_key, removed)
  call_many('ZREM', dead_key, removed)
end
local due = count > 0
  and redis.call('ZRANGEBYSCORE', to_archive_key, '-inf', now_text, 'LIMIT', 0, count) or {}
local bytes, rows = 0, {}
for _, id in ipairs(due) do
  if bytes > REPLY_BYTES_MAX then break end
  local attempt_ms = redis.call('ZSCORE', webhooks_key, id)
  if attempt_ms then
    -- Checked again after the attempt, so that it does not block the transactions behind it.
    redis.call('ZADD', to_archive_key, math.max(now_ms, tonumber(attempt_ms)) + 1000, id)
  else
    local state = redis.call('HGETALL', states_stem .. id)
    if #state == 0 then
      redis.call('ZREM', to_archive_key, id)
      record_event('dropped', id, label('-|-|-'), '"d":"no_state"')
    else
      for _, value in ipairs(state) do bytes = bytes + #value end
      table.insert(state, 1, id)
      rows[#rows + 1] = state
    end
  end
end
write_batch()
return reply.leased(grant, rows)
