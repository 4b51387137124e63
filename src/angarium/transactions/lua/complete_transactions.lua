#!lua
-- Guarantee: a running transaction ends once, by the run that took it: the outcome is saved, the id
-- leaves processingZ, the archiving and the webhook are scheduled, the parent gets the result, and
-- pollers are notified.
-- KEYS: 3 to 5 statistics, 6 processing, 7 sleeping, 8 toArchive, 9 webhooks, 10 to 11 stems of
-- qOut and states; per item: state
-- ARGV: 4 notify, 5 work, 6 archive_ms, 7 number of items; per item: id, score in processingZ, ending
-- «status|run|flags|label», output, note; flags: 'f' may have a checkpoint, 'w' has a webhook, 'p' has
-- a parent, 'c' has children
-- Returns: per item 'completed' | 'no_state' | 'not_running' | 'stale_run' | 'bad_status'
-- Events: completed, cancelled, expired, resumed (module transactions)
-- Repeats: safe, the second call finds its own outcome and returns 'completed'
-- include: transition
-- include: transactions
-- include: transaction_end
-- The score in processingZ proves that this run has the transaction. Without it, the state says why.
local function refusal(state, run, status)
  local found = redis.call('HMGET', state, 'status', 'run')
  if not found[1] then return 'no_state' end
  if found[1] == 'running' then return 'stale_run' end
  return found[1] == status and found[2] == run and 'completed' or 'not_running'
end

-- Most items of a batch have the same ending, so each is parsed once.
local endings = {}
local function ending_of(text)
  local ending = endings[text]
  if not ending then
    local status, run, flags, name = string.match(text, '^([^|]*)|([^|]*)|([^|]*)|(.*)$')
    local has_extra_work = string.find(flags, '[wpc]') ~= nil
    ending = {
      status = status, run = run,
      found = { 'running', run, name, has_extra_work, not has_extra_work and flags ~= '' },
    }
    endings[text] = ending
  end
  return ending
end

local count, ids, scores = tonumber(ARGV[7]), {}, {}
for item = 1, count do ids[item] = ARGV[3 + 5 * item] end
for first = 1, count, 1000 do
  local part = redis.call('ZMSCORE', KEYS[6], unpack(ids, first, math.min(first + 999, count)))
  for index, score in ipairs(part) do scores[first + index - 1] = score end
end
local statuses, ended_ids = {}, {}
for item = 1, count do
  local at = 3 + 5 * item
  local id, ending, state = ids[item], ending_of(ARGV[at + 2]), KEYS[11 + item]
  if not FINAL[ending.status] then
    statuses[item] = 'bad_status'
  elseif ended_ids[id] or not scores[item] or tonumber(scores[item]) ~= tonumber(ARGV[at + 1]) then
    statuses[item] = refusal(state, ending.run, ending.status)
  else
    end_transaction(state, id, ending.found, ending.status, ARGV[at + 3], ARGV[at + 4])
    statuses[item] = 'completed'
    ended_ids[id] = true
  end
end
end_all()
write_batch()
return statuses
