#!lua
-- Guarantee: a running transaction ends once, by the run that took it: the outcome is saved, the id
-- leaves processingZ, the archiving and the webhook are scheduled, the parent gets the result, and
-- pollers are notified. The try that makes it a dead letter counts as failed.
-- Events: completed, dead, cancelled, expired, resumed (module transactions)
-- Repeats: safe, the second call finds its own outcome and returns 'completed'
-- include: transition
-- include: transactions
-- include: transaction_end
-- The score in processingZ proves that this run has the transaction. Without it, the state says why.
local function refusal(state, run, status)
  local found = redis.call('HMGET', state, 'status', 'run')
  if not found[1] then return reply.no_state end
  if found[1] == 'running' then return reply.stale_run end
  return found[1] == status and found[2] == run and reply.completed or reply.not_running
end

-- Most items of a batch have the same ending, so each is parsed once.
local endings = {}
local function ending_of(text)
  local ending = endings[text]
  if not ending then
    local status, run, flags, reason, name =
      string.match(text, '^([^|]*)|([^|]*)|([^|]*)|([^|]*)|(.*)$')
    local has_extra_work = string.find(flags, '[wpc]') ~= nil or reason ~= ''
    ending = {
      status = status, run = run, reason = reason,
      found = { 'running', run, name, has_extra_work, not has_extra_work and flags ~= '' },
    }
    endings[text] = ending
  end
  return ending
end

local ids, scores, ended_ids = item_column(1), {}, {}
for first = 1, item_count, 1000 do
  local part = redis.call('ZMSCORE', processing_key,
    unpack(ids, first, math.min(first + 999, item_count)))
  for index, score in ipairs(part) do scores[ids[first + index - 1]] = score end
end
local statuses = each_item(function(transaction_id, score, ending, output, remark, state_key)
  local wanted, held = ending_of(ending), scores[transaction_id]
  if not FINAL[wanted.status] then return reply.bad_status end
  if ended_ids[transaction_id] or not held or tonumber(held) ~= tonumber(score) then
    return refusal(state_key, wanted.run, wanted.status)
  end
  end_transaction(state_key, transaction_id, wanted.found, wanted.status, output, remark,
    wanted.reason)
  if wanted.reason ~= '' then
    local tries, crashes = read_faults(redis.call('HGET', state_key, 'faults'))
    redis.call('HSET', state_key, 'faults', tries + 1 .. ' ' .. crashes, 'error', remark)
  end
  ended_ids[transaction_id] = true
  return reply.completed
end)
end_all()
write_batch()
return statuses
