#!lua
-- Guarantee: a message is stored and pending behind all earlier ones, or its queue is full and
-- nothing is stored. The gateway of the live session gets a hint. If no earlier message is pending
-- and the session is at the caller's gateway, the message is sending at once. If the queue has no
-- live session, the push notification is scheduled; the newest one of a token replaces the earlier.
-- KEYS: 3 gateways, 4 ages, 5 charted, 6 pushes due, 7 pushes; per item the six of its queue
-- ARGV: 4 messages_max and 5 bytes_max of a queue, 6 hint channel without the gateway, 7 messages
-- that may be sending at a time, or 0 if the caller does not see replies in order, 8 number of
-- items; per item: queue, id, recipient DIDs divided by spaces, payload, hashed push token and
-- notification divided by a space, or '', 1 if it may go to its session at once
-- Returns: per item {'sent', term, sequence, received_ms} | 'here' (its live session is at the
-- caller's gateway) | 'elsewhere' | 'offline' | 'queue_full'
-- Events: accepted, with status 'sent' if it went to its session at once; push_scheduled (module
-- pickup)
-- Repeats: no, a repeat would restore a message that was removed meanwhile; call find_messages
-- include: transition
-- include: queue
local messages_max, bytes_max, window = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[7])
local statuses, hints, known, now = {}, {}, {}, digits(now_ms)
-- Until the archived messages are counted, the database may have older ones.
if call('EXISTS', KEYS[5]) == 0 then window = 0 end

-- Whether no earlier message is pending, here or in the database, and the window has space.
local function can_send_at_once(queue, stored, archived, held, grace)
  if window == 0 or archived > held then return false end
  -- Every message in Redis is pending or sending; a sending one is in Redis or counted in `held`.
  local sending = call('ZCARD', queue.sending)
  return sending < window and stored + held == sending and not in_grace(queue, grace)
end

local function add(queue, name, id, dids, payload, push, at_once)
  local meta = call('HMGET', queue.meta, 'sequence', 'stored', 'bytes', 'archived', 'held',
    'gateway', 'term', 'grace')
  local stored, bytes = tonumber(meta[2]) or 0, tonumber(meta[3]) or 0
  local archived, gateway = tonumber(meta[4]) or 0, meta[6]
  local sequence = next_sequence(meta[1])
  local record = digits(sequence) .. ' ' .. now .. ' ' .. dids .. '\n' .. payload
  if stored + archived >= messages_max or bytes + #record > bytes_max then return 'queue_full' end
  if not meta[1] then begin_epoch(queue) end
  call('HSET', queue.messages, id, record)
  call('HSET', queue.meta, 'sequence', sequence, 'stored', stored + 1, 'bytes', bytes + #record)
  if stored == 0 then call('ZADD', KEYS[4], 'NX', now, name) end
  local live = gateway and alive(KEYS[3], gateway, known)
  if live and gateway == actor and at_once
    and can_send_at_once(queue, stored, archived, tonumber(meta[5]) or 0, meta[8]) then
    call('ZADD', queue.sending, HELD + sequence, id)
    note_message('accepted', id, name, ',"t":"sent"')
    return { 'sent', meta[7], sequence, now_ms }
  end
  note_message('accepted', id, name)
  call('ZADD', queue.pending, sequence, id)
  index(queue, 'ZADD', id, sequence, dids)
  if not live then
    if push ~= '' then schedule_push(KEYS[6], KEYS[7], push, id) end
    return 'offline'
  end
  if gateway == actor then return 'here' end
  hints[gateway] = (hints[gateway] or 'mail') .. '\n' .. name
  return 'elsewhere'
end

for item = 1, tonumber(ARGV[8]) do
  local at = 9 + (item - 1) * 6
  statuses[item] = add(queue_at(8 + (item - 1) * QUEUE_KEYS), ARGV[at], ARGV[at + 1], ARGV[at + 2],
    ARGV[at + 3], ARGV[at + 4], ARGV[at + 5] == '1')
end
for gateway, hint in pairs(hints) do call('PUBLISH', ARGV[6] .. gateway, hint) end
journal_append('pickup')
return statuses
