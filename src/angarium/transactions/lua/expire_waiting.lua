#!lua
-- Guarantee: a transaction that waits for a step type past its deadline ends once, as timeout. Others
-- are not read.
-- KEYS: 3 to 5 statistics, 6 processing, 7 sleeping, 8 toArchive, 9 webhooks, 10 to 11 stems of
-- qOut and states, 12 stem of qWait
-- ARGV: 4 notify, 5 work, 6 archive_ms, 7 count
-- Returns: the number of transactions that left the waiting lists
-- Events: expired, resumed (module transactions)
-- Repeats: safe
-- include: transition
-- include: transactions
-- include: transaction_end
-- include: waiting
wait_stem = KEYS[12]
local due = redis.call('ZRANGEBYSCORE', wait_stem .. 'deadlines', '-inf', now_text, 'LIMIT', 0,
  ARGV[7])
for _, id in ipairs(due) do
  local state = KEYS[11] .. id
  local found = redis.call('HMGET', state, 'status', 'run', 'label', 'more')
  local list = redis.call('HGET', state, 'waits')
  if list then
    stop_waiting(id, list)
    if found[1] == 'queued' then
      local step_type = string.match(list, '([^|]*)$')
      end_transaction(state, id, found, 'timeout', '',
        "no node with step '" .. step_type .. "' took it in time")
    end
  else
    -- An API of 0.1.0, which does not know waiting lists, cancelled it, and it was archived.
    for _, other in ipairs(redis.call('ZRANGE', wait_stem .. 'places', 0, -1)) do
      stop_waiting(id, other)
    end
    redis.call('ZREM', wait_stem .. 'deadlines', id)
  end
end
end_all()
write_batch()
return #due
