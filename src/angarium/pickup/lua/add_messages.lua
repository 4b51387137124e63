#!lua
-- Guarantee: a message is stored and pending behind all earlier ones, or its queue is full and
-- nothing is stored. The gateway of the live session gets a hint: 'here' is the caller's, which needs
-- none. Without one, the gateway of a session of one of the recipients gets it. If no earlier message is pending, the session is at the caller's gateway and the caller sees
-- replies in order (at_once), the message is sending at once. A message with a push is notified
-- gather_ms later if the queue has no live session, else if it is not collected in uncollected_ms.
-- Events: accepted, with status 'sent' if it went to its session at once; push_scheduled (module
-- pickup)
-- Repeats: no, a repeat would restore a message that was removed meanwhile; call find_messages
-- include: transition
-- include: queue
-- include: push
-- include: did
local hints, known, now = {}, {}, digits(now_ms)
-- Until the archived messages are counted, the database may have older ones.
local counted = call('EXISTS', charted_key) == 1
local by_did = call('EXISTS', did_sessions_key) == 1

-- Whether no earlier message is pending, here or in the database, and the window has space.
local function can_send_at_once(keys, stored, archived, held, grace)
  if not counted or archived > held then return false end
  -- Every message in Redis is pending or sending; a sending one is in Redis or counted in `held`.
  local sending = call('ZCARD', keys.sending)
  return sending < window and stored + held == sending and not in_grace(keys, grace)
end

local replies = each_item(function(queue, id, dids, payload, push, at_once,
  meta_key, messages_key, pending_key, sending_key,
  recipients_key, removed_key, tokens_key)
  local keys = queue_keys(meta_key, messages_key, pending_key, sending_key, recipients_key,
    removed_key)
  local meta = call('HMGET', keys.meta, 'sequence', 'stored', 'bytes', 'archived', 'held',
    'gateway', 'term', 'grace', 'dids')
  local stored, bytes = tonumber(meta[2]) or 0, tonumber(meta[3]) or 0
  local archived, gateway = tonumber(meta[4]) or 0, meta[6]
  local sequence = next_sequence(meta[1])
  local record = digits(sequence) .. ' ' .. now .. ' ' .. dids .. '\n' .. payload
  if stored + archived >= messages_max or bytes + #record > bytes_max then
    return reply.queue_full
  end
  if push ~= '' and bytes + #record + #push + field(keys, 'token_bytes') > bytes_max then
    return reply.queue_full
  end
  if not meta[1] then begin_epoch(keys) end
  call('HSET', keys.messages, id, record)
  call('HSET', keys.meta, 'sequence', sequence, 'stored', stored + 1, 'bytes', bytes + #record)
  if stored == 0 then call('ZADD', ages_key, 'NX', now, queue) end
  if meta[9] ~= dids then index_dids(dids_key, meta_key, queue, dids, meta[9]) end
  local live = gateway and alive(gateways_key, gateway, known)
  if not live and by_did then
    gateway = did_gateway(did_sessions_key, gateways_key, queue, dids, known)
    if gateway then
      hint_of_did(hints, gateway, queue, dids)
      live, gateway = true, nil
    end
  end
  if push ~= '' then
    local due_ms = now_ms + (live and uncollected_ms or gather_ms)
    local new = schedule_push(meta_key, tokens_key, pushes_due_key, queue, id, push, due_ms)
    if new and not live then note('push_scheduled', id) end
  end
  if live and gateway == actor and at_once
    and can_send_at_once(keys, stored, archived, tonumber(meta[5]) or 0, meta[8]) then
    call('ZADD', keys.sending, HELD + sequence, id)
    note_message('accepted', id, queue, ',"t":"sent"')
    return reply.sent(meta[7], sequence, now_ms)
  end
  note_message('accepted', id, queue)
  call('ZADD', keys.pending, sequence, id)
  index(keys, 'ZADD', id, sequence, dids)
  if not live or not gateway then return reply.offline end
  if gateway == actor then return reply.here end
  hint_of_mail(hints, gateway, queue)
  return reply.elsewhere
end)
publish_hints(hints)
journal_append('pickup')
return replies
