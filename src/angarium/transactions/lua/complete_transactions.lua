#!lua
-- Guarantee: a running transaction ends once, under the run that took it: outcome saved, out of
-- processingZ, due for the archive, its webhook due, its parent told, pollers notified.
-- KEYS: 3 to 5 statistics, 6 processing, 7 sleeping, 8 toArchive, 9 webhooks, 10 to 11 stems of
-- qOut and states; per item: state
-- ARGV: 4 notify, 5 work, 6 archive_ms, 7 number of items; per item: id, run, place, label, '1' if it
-- may have rare fields, status, output, note
-- Returns: per item 'completed' | 'no_state' | 'not_running' | 'stale_run' | 'bad_status'
-- Events: completed, cancelled, expired, resumed (room transactions)
-- Repeats: safe, the second call finds its own outcome and answers 'completed'
-- include: transition
-- include: transactions
-- include: transaction_end
-- Its place in processingZ is proof that this run has it; only one that has none is asked why.
local function refusal(state, run, status)
  local found = redis.call('HMGET', state, 'status', 'run')
  if not found[1] then return 'no_state' end
  if found[1] == 'running' then return 'stale_run' end
  return found[1] == status and found[2] == run and 'completed' or 'not_running'
end

local count, ids, places = tonumber(ARGV[7]), {}, {}
for item = 1, count do ids[item] = ARGV[8 * item] end
for first = 1, count, 1000 do
  local part = redis.call('ZMSCORE', KEYS[6], unpack(ids, first, math.min(first + 999, count)))
  for index, place in ipairs(part) do places[first + index - 1] = place end
end
local statuses, gone = {}, {}
for item = 1, count do
  local at = 8 * item
  local id, run, status, state = ARGV[at], ARGV[at + 1], ARGV[at + 5], KEYS[11 + item]
  if not FINAL[status] then
    statuses[item] = 'bad_status'
  elseif gone[id] or not places[item] or tonumber(places[item]) ~= tonumber(ARGV[at + 2]) then
    statuses[item] = refusal(state, run, status)
  else
    local found = { 'running', run, ARGV[at + 3], ARGV[at + 4] == '1' }
    end_transaction(state, id, found, status, ARGV[at + 6], ARGV[at + 7])
    statuses[item] = 'completed'
    gone[id] = true
  end
end
end_all()
settle()
return statuses
