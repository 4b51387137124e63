#!lua
-- Guarantee: pending messages are given to one caller, oldest first, within both limits. They are
-- sending until they are removed or their time is over; nobody else gets them meanwhile. The first
-- message may have more bytes than bytes_max, up to first_bytes_max. 'archived': messages in the
-- database come first (seen is the number of moves whose messages the caller has claimed).
-- 'in_grace': an earlier session may still acknowledge older messages. 'busy': call again.
-- Events: sent, returned (module pickup)
-- Repeats: no, a repeat does not return the messages of the first call
-- include: transition
-- include: queue
local due_ms = digits(now_ms + sending_ms)
local budget, counted = call_bytes_max, call('EXISTS', charted_key) == 1

local function oldest(keys, did, limit)
  if did == '' then return call('ZRANGE', keys.pending, 0, limit - 1) end
  local members = call('ZRANGEBYLEX', keys.recipients, '[' .. did .. ' ',
    '(' .. did .. '!', 'LIMIT', 0, limit)
  local ids = {}
  for i, member in ipairs(members) do ids[i] = string.match(member, '(%S+)$') end
  return ids
end

local replies = each_item(function(queue, did, messages_max, bytes_max, first_bytes_max, seen,
  meta_key, messages_key, pending_key, sending_key,
  recipients_key, removed_key)
  if not counted then return reply.not_counted end
  local keys = queue_keys(meta_key, messages_key, pending_key, sending_key, recipients_key,
    removed_key)
  local meta = call('HMGET', keys.meta, 'archived', 'held', 'moves', 'cleared', 'grace')
  if meta[5] and tonumber(meta[5]) > now_ms and in_grace(keys, meta[5]) then return reply.in_grace end
  if meta[5] and release(keys, queue, '-inf', meta[5], -1) > 0 then
    call('HDEL', keys.meta, 'grace')
    meta[2] = call('HGET', keys.meta, 'held')
  end
  local moves = meta[3] or '0'
  if (tonumber(meta[1]) or 0) > (tonumber(meta[2]) or 0) and seen ~= moves then
    return reply.archived(moves, meta[4] or '')
  end
  if budget <= 0 then return reply.busy end
  local messages, bytes, more = {}, 0, 0
  for _, id in ipairs(oldest(keys, did, messages_max)) do
    local record = call('HGET', keys.messages, id)
    local sequence, _, dids = header_of(record)
    bytes = bytes + #record - (string.find(record, '\n', 1, true))
    if bytes > (#messages == 0 and first_bytes_max or bytes_max) then
      more = 1
      break
    end
    budget = budget - #record
    call('ZREM', keys.pending, id)
    index(keys, 'ZREM', id, sequence, dids)
    call('ZADD', keys.sending, due_ms, id)
    messages[#messages + 1] = id
    messages[#messages + 1] = record
    note_message('sent', id, queue)
  end
  if #messages > 0 then call('ZADD', due_key, 'LT', due_ms, queue) end
  return reply.taken(more, due_ms, messages)
end)
journal_append('pickup')
return replies
