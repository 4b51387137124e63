#!lua
-- Guarantee: pending messages go to the live session of the given term, oldest first. They are
-- sending while that session lasts; nobody else gets them meanwhile. 'archived': messages in the
-- database come first (seen is the number of moves whose messages the caller has claimed).
-- 'in_grace': an earlier session may still acknowledge older messages. 'busy': call again.
-- Events: sent, returned (module pickup)
-- Repeats: no, a repeat does not return the messages of the first call
-- include: transition
-- include: queue
local budget, counted = call_bytes_max, call('EXISTS', charted_key) == 1

local function send(keys, queue, ids)
  local records = call('HMGET', keys.messages, unpack(ids))
  local messages, sent, scores, bytes = {}, {}, {}, 0
  for i, id in ipairs(ids) do
    local record = records[i]
    bytes = bytes + #record
    if i > 1 and bytes > bytes_max then break end
    local sequence, _, dids = header_of(record)
    index(keys, 'ZREM', id, sequence, dids)
    scores[2 * i - 1], scores[2 * i] = HELD + sequence, id
    sent[i] = id
    messages[2 * i - 1], messages[2 * i] = id, record
    note_message('sent', id, queue)
  end
  call('ZREM', keys.pending, unpack(sent))
  call('ZADD', keys.sending, unpack(scores))
  budget = budget - bytes
  return messages
end

local replies = each_item(function(queue, term, resend, seen, meta_key, messages_key, pending_key, sending_key,
  recipients_key, removed_key)
  if not counted then return reply.not_counted end
  local keys = queue_keys(meta_key, messages_key, pending_key, sending_key, recipients_key,
    removed_key)
  local meta = call('HMGET', keys.meta, 'term', 'archived', 'held', 'moves', 'grace', 'cleared')
  if meta[1] ~= term then return reply.lost end
  if resend then
    release(keys, queue, digits(HELD), '+inf', -1)
    meta[3] = call('HGET', keys.meta, 'held')
  end
  if in_grace(keys, meta[5]) then return reply.in_grace end
  local free = window - call('ZCARD', keys.sending)
  if free <= 0 then return reply.window_full end
  local moves = meta[4] or '0'
  if (tonumber(meta[2]) or 0) > (tonumber(meta[3]) or 0) and seen ~= moves then
    return reply.archived(moves, meta[6] or '')
  end
  if budget <= 0 then return reply.busy end
  local ids = call('ZRANGE', keys.pending, 0, math.min(free, messages_max) - 1)
  if #ids == 0 then return reply.pulled(0, ids) end
  local messages = send(keys, queue, ids)
  return reply.pulled(call('EXISTS', keys.pending), messages)
end)
journal_append('pickup')
return replies
