#!lua
-- Guarantee: a dead letter is queued again at the step that failed, once, with a new deadline and no
-- failed tries; with `data`, the step gets this data.
-- Events: rerun (module transactions)
-- Repeats: safe, the second call returns 'not_dead'
-- include: transition
-- include: transactions
local rerun = {}
local statuses = each_item(function(transaction_id, data, state_key)
  local found = redis.call('HMGET', state_key, 'status', 'label', 'reason', 'version', 'step',
    'queue')
  if not found[1] then return reply.no_state end
  if not found[3] or not FINAL[found[1]] then return reply.not_dead end
  local about, queue = label(found[2]), found[6] == 'admin' and 'admin' or 'out'
  local pipeline = redis.call('HMGET', pipelines_stem .. about.pipeline, 'group:' .. found[4],
    'timeout:' .. found[4])
  if not pipeline[1] then return reply.unknown_version end
  local deadline_ms = now_ms + (tonumber(pipeline[2]) or timeout_ms)
  redis.call('HSET', state_key, 'status', 'queued', 'queue', queue, 'updated', now_text,
    'deadline', string.format('%.0f', deadline_ms), 'more', 1)
  redis.call('HDEL', state_key, 'completed', 'output', 'note', 'reason', 'faults', 'error', 'notified',
    'hookGivenUp')
  if data ~= '' then redis.call('HSET', state_key, 'frame', (found[5] or '0') .. ' 0 ' .. data) end
  push(queue == 'admin' and admin_stem or out_stem, queue, about, transaction_id)
  record_event('rerun', transaction_id, about)
  rerun[#rerun + 1] = transaction_id
  return reply.queued
end)
if #rerun > 0 then
  call_many('ZREM', dead_key, rerun)
  call_many('ZREM', to_archive_key, rerun)
  call_many('ZREM', webhooks_key, rerun)
end
write_batch()
return statuses
