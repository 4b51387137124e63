#!lua
-- Guarantee: a running transaction ends once, under the run that took it: outcome saved, out of
-- processingZ, due for the archive, its webhook due, its parent told, pollers notified.
-- KEYS: 3 to 5 statistics, 6 processing, 7 sleeping, 8 toArchive, 9 webhooks, 10 to 11 stems of
-- qOut and states; per item: state
-- ARGV: 4 notify, 5 work, 6 archive_ms, 7 number of items; per item: id, place, ending
-- «status|run|ties|label», output, note; ties are 'f' it may have a frame, and 'w' a webhook, 'p' a
-- parent or 'c' children to see to
-- Returns: per item 'completed' | 'no_state' | 'not_running' | 'stale_run' | 'bad_status'
-- Events: completed, cancelled, expired, resumed (module transactions)
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

-- Most of a batch end alike, so an ending is taken apart once.
local endings = {}
local function ending_of(text)
  local ending = endings[text]
  if not ending then
    local status, run, ties, name = string.match(text, '^([^|]*)|([^|]*)|([^|]*)|(.*)$')
    local tied = string.find(ties, '[wpc]') ~= nil
    ending = {
      status = status, run = run,
      found = { 'running', run, name, tied, not tied and ties ~= '' },
    }
    endings[text] = ending
  end
  return ending
end

local count, ids, places = tonumber(ARGV[7]), {}, {}
for item = 1, count do ids[item] = ARGV[3 + 5 * item] end
for first = 1, count, 1000 do
  local part = redis.call('ZMSCORE', KEYS[6], unpack(ids, first, math.min(first + 999, count)))
  for index, place in ipairs(part) do places[first + index - 1] = place end
end
local statuses, gone = {}, {}
for item = 1, count do
  local at = 3 + 5 * item
  local id, ending, state = ids[item], ending_of(ARGV[at + 2]), KEYS[11 + item]
  if not FINAL[ending.status] then
    statuses[item] = 'bad_status'
  elseif gone[id] or not places[item] or tonumber(places[item]) ~= tonumber(ARGV[at + 1]) then
    statuses[item] = refusal(state, ending.run, ending.status)
  else
    end_transaction(state, id, ending.found, ending.status, ARGV[at + 3], ARGV[at + 4])
    statuses[item] = 'completed'
    gone[id] = true
  end
end
end_all()
settle()
return statuses
