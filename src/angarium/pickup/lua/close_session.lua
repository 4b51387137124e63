#!lua
-- Guarantee: only the session that matches ends; a late call can't end a newer one ('other'). An
-- empty socket, session or term matches any; dead: its gateway's lease must have run out. Messages
-- that it was sent and did not acknowledge are pending again after the grace period. If it was at
-- another gateway, that gateway gets a hint, and can't restore the session even if the hint is lost.
-- Events: session_closed (module pickup)
-- Repeats: safe, the second call answers 'none'
-- include: transition
-- include: queue
local due_ms, known = now_ms + grace_ms, {}

-- The gateway learns that its session ended: remove it from the gateway's list.
local function unlist(keys, sessions_key, queue, ended, term)
  call('SREM', sessions_key, queue)
  if ended and (term == '' or term == ended) then
    call('HDEL', keys.meta, 'ended')
    delete_if_unused(keys)
  end
end

local replies = each_item(function(queue, gateway, socket, session, term, dead,
  meta_key, messages_key, pending_key, sending_key,
  recipients_key, removed_key, sessions_key)
  local keys = queue_keys(meta_key, messages_key, pending_key, sending_key, recipients_key,
    removed_key)
  local meta = call('HMGET', keys.meta, 'session', 'gateway', 'socket', 'term', 'ended')
  local matches = meta[2] == gateway and (socket == '' or meta[3] == socket)
    and (session == '' or meta[1] == session) and (term == '' or meta[4] == term)
  local informed = actor == gateway or dead
  if matches and dead and alive(gateways_key, gateway, known) then return reply.other end
  if not matches then
    if meta[2] ~= gateway and informed then unlist(keys, sessions_key, queue, meta[5], term) end
    return meta[2] and reply.other or reply.none
  end
  call('HDEL', keys.meta, 'session', 'gateway', 'socket', 'term')
  if informed then
    call('SREM', sessions_key, queue)
  else
    call('HSET', keys.meta, 'ended', meta[4])
    call('PUBLISH', hint_channel .. gateway, 'replaced\n' .. meta[4] .. ' ' .. queue)
  end
  begin_grace(keys, due_key, queue, due_ms)
  note('session_closed', meta[1], { k = queue, n = gateway })
  delete_if_unused(keys)
  return reply.closed
end)
journal_append('pickup')
return replies
