#!lua
-- Guarantee: only the session that was meant ends; a late call can't end a newer one. What it was
-- sent and did not acknowledge is pending again after the grace period.
-- KEYS: 3 gateways, 4 due; per item the six of its queue and the sessions of its gateway
-- ARGV: 4 grace_ms, 5 number of items; per item: queue, gateway, and what has to match: socket or
-- '', session or '', '1' if the gateway must be dead
-- Returns: per item 'closed' | 'other' another session is open | 'none'
-- Events: session_closed (room pickup)
-- Repeats: safe, the second call answers 'none'
-- include: transition
-- include: queue
local due_ms, known = now_ms + tonumber(ARGV[4]), {}

local function close(first, name, gateway, socket, session, dead)
  local queue = queue_at(first)
  local meta = call('HMGET', queue.meta, 'session', 'gateway', 'socket')
  local ours = meta[2] == gateway and (socket == '' or meta[3] == socket)
    and (session == '' or meta[1] == session)
  if ours and dead == '1' and alive(KEYS[3], gateway, known) then return 'other' end
  if not meta[2] or not ours then
    -- Listed for a gateway that no longer has it: the list is mended on the way.
    if meta[2] ~= gateway then call('SREM', KEYS[first + 6], name) end
    return meta[2] and 'other' or 'none'
  end
  call('HDEL', queue.meta, 'session', 'gateway', 'socket', 'term')
  call('SREM', KEYS[first + 6], name)
  begin_grace(queue, KEYS[4], name, due_ms)
  note('session_closed', meta[1], { k = name, n = gateway })
  tidy(queue)
  return 'closed'
end

local statuses = {}
for item = 1, tonumber(ARGV[5]) do
  local at = 6 + (item - 1) * 5
  statuses[item] = close(5 + (item - 1) * (QUEUE_KEYS + 1), ARGV[at], ARGV[at + 1], ARGV[at + 2],
    ARGV[at + 3], ARGV[at + 4])
end
journal_append('pickup')
return statuses
