#!lua
-- Guarantee: a queue has one live session, the newest. Messages that an earlier one was sent and did
-- not acknowledge are pending again after the grace period; its gateway gets a hint. 'kept': the
-- session is open already. 'taken': another session replaced the one to restore, or another gateway
-- closed it. 'late': a session is open that began after the client asked.
-- Events: session_opened, session_replaced (module pickup)
-- Repeats: safe, the second call answers 'kept'
-- include: transition
-- include: queue
local known = {}

local replies = each_item(function(queue, session, socket, restored, asked_ms,
  meta_key, messages_key, pending_key, sending_key,
  recipients_key, removed_key)
  if not alive(gateways_key, actor, known) then return reply.no_lease end
  local keys = queue_keys(meta_key, messages_key, pending_key, sending_key, recipients_key,
    removed_key)
  local meta = call('HMGET', keys.meta, 'session', 'gateway', 'socket', 'term', 'sequence', 'ended')
  local other = meta[2]
  if restored ~= '' and restored == meta[6] then return reply.taken end
  if other then
    local same = other == actor and meta[3] == socket and meta[1] == session
    if same or (restored ~= '' and restored == meta[4]) then return reply.kept(meta[4]) end
    local later = asked_ms ~= '' and tonumber(meta[4]) > tonumber(asked_ms) * 1000
    if (restored ~= '' or later) and alive(gateways_key, other, known) then
      return later and reply.late or reply.taken
    end
    begin_grace(keys, due_key, queue, now_ms + grace_ms)
    note('session_replaced', meta[1], { k = queue, n = other })
    call('PUBLISH', hint_channel .. other, 'replaced\n' .. meta[4] .. ' ' .. queue)
  end
  if not meta[5] then begin_epoch(keys) end
  local term = digits(next_sequence(meta[5]))
  call('HSET', keys.meta, 'session', session, 'gateway', actor, 'socket', socket,
    'term', term, 'sequence', term)
  call('SADD', sessions_key, queue)
  note('session_opened', session, { k = queue, n = actor })
  return reply.opened(term)
end)
journal_append('pickup')
return replies
