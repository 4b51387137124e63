#!lua
-- Guarantee: stores the newest report of a running transaction, publishes the event, and schedules
-- the webhook if the start asked for progress reports.
-- KEYS: 3 to 5 statistics, 6 webhooks; per item: state
-- ARGV: 4 notify, 5 work, 6 number of items; per item: id, run, report
-- Returns: per item 'reported' | 'no_state' | 'not_running' | 'stale_run'
-- Events: progressed (module transactions)
-- Repeats: safe, but a repeat counts as a further report
-- include: transition
-- include: transactions
local statuses = {}
for item = 1, tonumber(ARGV[6]) do
  local at = 4 + 3 * item
  local id, run, state = ARGV[at], ARGV[at + 1], KEYS[6 + item]
  local found = redis.call('HMGET', state, 'status', 'run', 'label', 'webhook', 'options',
    'hookVersion')
  if not found[1] then
    statuses[item] = 'no_state'
  elseif found[1] ~= 'running' then
    statuses[item] = 'not_running'
  elseif found[2] ~= run then
    statuses[item] = 'stale_run'
  else
    redis.call('HSET', state, 'progress', ARGV[at + 2], 'updated', now_text)
    if found[4] and string.find(found[5] or '', 'p', 1, true) then
      redis.call('HSET', state, 'hookVersion', (tonumber(found[6]) or 0) + 1, 'hookTries', 0)
      redis.call('ZADD', KEYS[6], now_text, id)
    end
    record_event('progressed', id, label(found[3]))
    statuses[item] = 'reported'
  end
end
write_batch()
return statuses
