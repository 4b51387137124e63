-- The end of a transaction, for all scripts that can end one. Needs `transactions`.
--   KEYS  6 processing, 7 sleeping, 8 toArchive, 9 webhooks, 10 stem of qOut, 11 stem of states
--   ARGV  6 archive_ms
local ended, to_archive = {}, {}
local archive_text = string.format('%.0f', now_ms + ARGV[6])
-- Few states have these fields. The field `more` says that a state may have some.
local RARE = { 'webhook', 'parent', 'children', 'hookVersion', 'childStep' }

local function schedule_webhook(state, id, version)
  redis.call('HSET', state, 'hookVersion', (tonumber(version) or 0) + 1, 'hookTries', 0)
  redis.call('ZADD', KEYS[9], now_text, id)
end

-- Stores the result of a child in its parent. The last child resumes the parent.
local function report_to_parent(parent, id, status, output, remark)
  local state = KEYS[11] .. parent
  local found = redis.call('HMGET', state, 'status', 'label', 'childStep')
  local step, number = string.match(id, '%.(%d+)%-(%d+)$')
  if not found[1] or FINAL[found[1]] or found[3] ~= step then return end
  local result = '{"transactionId":"' .. id .. '","status":"' .. status .. '","note":'
    .. cjson.encode(remark) .. ',"output":' .. (output ~= '' and output or 'null') .. '}'
  if redis.call('HSETNX', state, 'child:' .. number, result) == 0 then return end
  if redis.call('HINCRBY', state, 'childrenLeft', -1) > 0 or found[1] ~= 'sleeping' then return end
  redis.call('HSET', state, 'status', 'queued', 'queue', 'out', 'updated', now_text)
  redis.call('ZREM', KEYS[7], parent)
  local about = label(found[2])
  push(KEYS[10] .. about.group, about.group, parent)
  record_event('resumed', parent, about)
end

-- `found` has status, run, label, `more`, and true if the only rare field may be 'frame'. `end_all`
-- writes processingZ and toArchiveZ. Returns the rare fields.
local function end_transaction(state, id, found, status, output, remark)
  local rare = {}
  if found[5] then
    redis.call('HSET', state, 'status', status, 'output', output, 'completed', now_text, 'frame', '')
  else
    redis.call('HSET', state, 'status', status, 'output', output, 'completed', now_text)
  end
  if remark ~= '' then redis.call('HSET', state, 'note', remark) end
  if found[4] then
    rare = redis.call('HMGET', state, unpack(RARE))
    redis.call('HDEL', state, 'frame', 'cancel')
    if rare[3] then redis.call('HDEL', state, 'children', 'childrenLeft', 'childStep') end
    if rare[1] then schedule_webhook(state, id, rare[4]) end
    if found[1] == 'sleeping' then redis.call('ZREM', KEYS[7], id) end
  end
  ended[#ended + 1] = id
  to_archive[#to_archive + 1] = archive_text
  to_archive[#to_archive + 1] = id
  local more = '"t":"' .. status .. '"'
  if remark ~= '' then more = more .. ',"d":' .. brief(remark) end
  record_event(FINAL[status], id, label(found[3]), more)
  if rare[2] then report_to_parent(rare[2], id, status, output, remark) end
  return rare
end

local function end_all()
  if #ended == 0 then return end
  call_many('ZREM', KEYS[6], ended)
  call_many('ZADD', KEYS[8], to_archive)
end
