-- The end of a transaction, for all scripts that can end one. Needs `transactions`.
--   processing_key, sleeping_key, to_archive_key, webhooks_key, dead_key, out_stem, states_stem,
--   archive_ms, dead_ms, child_bytes_max
local ended, to_archive = {}, {}
local archive_text = string.format('%.0f', now_ms + archive_ms)
local dead_text = string.format('%.0f', now_ms + dead_ms)
-- Few states have these fields. The field `more` says that a state may have some.
local RARE = { 'webhook', 'parent', 'children', 'hookVersion', 'childStep' }

local function schedule_webhook(state, id, version)
  redis.call('HSET', state, 'hookVersion', (tonumber(version) or 0) + 1, 'hookTries', 0)
  redis.call('ZADD', webhooks_key, now_text, id)
end

-- Stores the result of a child in its parent. The last child resumes the parent. Outputs that would
-- make the parent's data too large are given by reference, as {"output_of": id}.
local function report_to_parent(parent, id, status, output, remark)
  local state = states_stem .. parent
  local found = redis.call('HMGET', state, 'status', 'label', 'childStep', 'childBytes')
  local step, number = string.match(id, '%.(%d+)%-(%d+)$')
  if not found[1] or FINAL[found[1]] or found[3] ~= step then return end
  local fits = (tonumber(found[4]) or 0) + #output <= child_bytes_max
  local value = output ~= '' and output or 'null'
  if not fits then value = '{"output_of":"' .. id .. '"}' end
  local result = '{"transactionId":"' .. id .. '","status":"' .. status .. '","note":'
    .. brief(remark) .. ',"output":' .. value .. '}'
  if redis.call('HSETNX', state, 'child:' .. number, result) == 0 then return end
  if fits and output ~= '' then redis.call('HINCRBY', state, 'childBytes', #output) end
  if redis.call('HINCRBY', state, 'childrenLeft', -1) > 0 or found[1] ~= 'sleeping' then return end
  redis.call('HSET', state, 'status', 'queued', 'queue', 'out', 'updated', now_text)
  redis.call('ZREM', sleeping_key, parent)
  local about = label(found[2])
  push(out_stem, 'out', about, parent)
  record_event('resumed', parent, about)
end

-- `found` has status, run, label, `more`, and true if the only rare field may be 'frame'. With a
-- `reason` the transaction is a dead letter: it keeps its checkpoint, so that it can be rerun.
-- `end_all` writes processingZ and toArchiveZ. Returns the rare fields.
local function end_transaction(state, id, found, status, output, remark, reason)
  local rare, dead = {}, reason and reason ~= ''
  if found[5] then
    redis.call('HSET', state, 'status', status, 'output', output, 'completed', now_text, 'frame', '')
  else
    redis.call('HSET', state, 'status', status, 'output', output, 'completed', now_text)
  end
  if remark ~= '' then redis.call('HSET', state, 'note', remark) end
  if found[4] then
    rare = redis.call('HMGET', state, unpack(RARE))
    redis.call('HDEL', state, 'cancel')
    if not dead then redis.call('HDEL', state, 'frame') end
    if rare[3] then redis.call('HDEL', state, 'children', 'childrenLeft', 'childStep', 'childBytes') end
    if rare[1] then schedule_webhook(state, id, rare[4]) end
    if found[1] == 'sleeping' then redis.call('ZREM', sleeping_key, id) end
  end
  ended[#ended + 1] = id
  to_archive[#to_archive + 1] = dead and dead_text or archive_text
  to_archive[#to_archive + 1] = id
  local more = '"t":"' .. status .. '"'
  if remark ~= '' then more = more .. ',"d":' .. brief(remark) end
  if dead then
    redis.call('HSET', state, 'reason', reason)
    redis.call('ZADD', dead_key, now_text, id)
  end
  record_event(dead and 'dead' or FINAL[status], id, label(found[3]), more)
  if rare[2] then report_to_parent(rare[2], id, status, output, remark) end
  return rare
end

local function end_all()
  if #ended == 0 then return end
  call_many('ZREM', processing_key, ended)
  call_many('ZADD', to_archive_key, to_archive)
end
