#!lua
-- Guarantee: only the session that matches ends; a late call can't end a newer one. Messages that it
-- was sent and did not acknowledge are pending again after the grace period. If it was at another
-- gateway, that gateway gets a hint, and can't restore the session even if the hint is lost.
-- KEYS: 3 gateways, 4 due; per item the six of its queue and the sessions of its gateway
-- ARGV: 4 grace_ms, 5 hint channel without the gateway, 6 number of items; per item: queue,
-- gateway, and the conditions: socket or '', session or '', term or '', '1' if the gateway must be
-- dead
-- Returns: per item 'closed' | 'other' (another session is open) | 'none'
-- Events: session_closed (module pickup)
-- Repeats: safe, the second call answers 'none'
-- include: transition
-- include: queue
local due_ms, known = now_ms + tonumber(ARGV[4]), {}

-- The gateway learns that its session ended: remove it from the gateway's list.
local function unlist(queue, sessions_key, name, ended, term)
  call('SREM', sessions_key, name)
  if ended and (term == '' or term == ended) then
    call('HDEL', queue.meta, 'ended')
    delete_if_unused(queue)
  end
end

local function close(first, name, gateway, socket, session, term, dead)
  local queue = queue_at(first)
  local meta = call('HMGET', queue.meta, 'session', 'gateway', 'socket', 'term', 'ended')
  local matches = meta[2] == gateway and (socket == '' or meta[3] == socket)
    and (session == '' or meta[1] == session) and (term == '' or meta[4] == term)
  if matches and dead == '1' and alive(KEYS[3], gateway, known) then return 'other' end
  if not matches then
    local informed = actor == gateway or dead == '1'
    if meta[2] ~= gateway and informed then
      unlist(queue, KEYS[first + 6], name, meta[5], term)
    end
    return meta[2] and 'other' or 'none'
  end
  call('HDEL', queue.meta, 'session', 'gateway', 'socket', 'term')
  if actor == gateway or dead == '1' then
    call('SREM', KEYS[first + 6], name)
  else
    call('HSET', queue.meta, 'ended', meta[4])
    call('PUBLISH', ARGV[5] .. gateway, 'replaced\n' .. meta[4] .. ' ' .. name)
  end
  begin_grace(queue, KEYS[4], name, due_ms)
  note('session_closed', meta[1], { k = name, n = gateway })
  delete_if_unused(queue)
  return 'closed'
end

local statuses = {}
for item = 1, tonumber(ARGV[6]) do
  local at = 7 + (item - 1) * 6
  statuses[item] = close(5 + (item - 1) * (QUEUE_KEYS + 1), ARGV[at], ARGV[at + 1], ARGV[at + 2],
    ARGV[at + 3], ARGV[at + 4], ARGV[at + 5])
end
journal_append('pickup')
return statuses
