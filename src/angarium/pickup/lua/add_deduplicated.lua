#!lua
-- Guarantee: a message with an id of the caller is stored once, pending behind all earlier ones, or
-- its queue is full and nothing is stored. The gateway of the live session gets a hint. A repeat
-- within once_ms stores nothing, even if the message was removed meanwhile: 'duplicate' if it is in
-- the queue, 'removed' if it was removed, 'not_in_redis' if only the database knows. A message with a push is notified
-- gather_ms later if the queue has no live session, else if it is not collected in uncollected_ms.
-- Events: accepted, with the sender's own id as the detail; push_scheduled (module pickup)
-- Repeats: safe, by id
-- include: transition
-- include: queue
-- include: push
-- include: did
local hints, known = {}, {}
local by_did = call('EXISTS', did_sessions_key) == 1

local function repeated(keys, id)
  if call('HEXISTS', keys.messages, id) == 1 then return reply.duplicate end
  if call('SISMEMBER', keys.removed, id) == 1 then return reply.removed end
  if call('ZSCORE', keys.sending, id) then return reply.duplicate end
  return field(keys, 'archived') > 0 and reply.not_in_redis or reply.removed
end

local replies = each_item(function(queue, message_id, dids, payload, stands_for, push, once_ms,
  meta_key, messages_key, pending_key, sending_key,
  recipients_key, removed_key, tokens_key, once_key)
  local keys = queue_keys(meta_key, messages_key, pending_key, sending_key, recipients_key,
    removed_key)
  if call('EXISTS', once_key) == 1 then return repeated(keys, message_id) end
  local meta = call('HMGET', keys.meta, 'sequence', 'stored', 'bytes', 'archived', 'gateway', 'dids')
  local stored, bytes = tonumber(meta[2]) or 0, tonumber(meta[3]) or 0
  local sequence = next_sequence(meta[1])
  local record = digits(sequence) .. ' ' .. digits(now_ms) .. ' ' .. dids .. '\n' .. payload
  local push_bytes = push ~= '' and #push + field(keys, 'token_bytes') or 0
  if stored + (tonumber(meta[4]) or 0) >= messages_max
    or bytes + #record + push_bytes > bytes_max then
    return reply.queue_full
  end
  if not meta[1] then begin_epoch(keys) end
  call('SET', once_key, 1, 'PX', once_ms)
  call('HSET', keys.messages, message_id, record)
  call('HSET', keys.meta, 'sequence', sequence, 'stored', stored + 1, 'bytes', bytes + #record)
  if stored == 0 then call('ZADD', ages_key, 'NX', now_ms, queue) end
  call('ZADD', keys.pending, sequence, message_id)
  index(keys, 'ZADD', message_id, sequence, dids)
  if meta[6] ~= dids then index_dids(dids_key, meta_key, queue, dids, meta[6]) end
  note('accepted', message_id, { k = queue, d = stands_for })
  local gateway = meta[5]
  local live = gateway and alive(gateways_key, gateway, known)
  if live then
    hint_of_mail(hints, gateway, queue)
  elseif by_did then
    gateway = did_gateway(did_sessions_key, gateways_key, queue, dids, known)
    live = gateway ~= nil
    if live then hint_of_did(hints, gateway, queue, dids) end
  end
  if push ~= '' then
    local due_ms = now_ms + (live and uncollected_ms or gather_ms)
    local new = schedule_push(meta_key, tokens_key, pushes_due_key, queue, message_id, push, due_ms)
    if new and not live then note('push_scheduled', message_id) end
  end
  return live and reply.live or reply.offline
end)
publish_hints(hints)
journal_append('pickup')
return replies
