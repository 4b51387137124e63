#!lua
-- Guarantee: a queue has one live session, the newest. Messages that an earlier one was sent and did
-- not acknowledge are pending again after the grace period; its gateway gets a hint.
-- KEYS: 3 gateways, 4 due, 5 sessions of the caller's gateway; per item the six of its queue
-- ARGV: 4 grace_ms, 5 hint channel without the gateway, 6 number of items; per item: queue,
-- session, socket, term of a session to restore or '', when the client asked in ms or ''
-- Returns: per item {'opened', term} | {'kept', term} (it is open already) | {'taken'} (another
-- session replaced it, or another gateway closed it, so it can't be restored) | {'late'} (a session
-- is open that began after the client asked) | {'no_lease'}
-- Events: session_opened, session_replaced (module pickup)
-- Repeats: safe, the second call answers 'kept'
-- include: transition
-- include: queue
local grace_ms, known = tonumber(ARGV[4]), {}

local function open(first, name, session, socket, restored, asked_ms)
  local queue = queue_at(first)
  if not alive(KEYS[3], actor, known) then return { 'no_lease' } end
  local meta = call('HMGET', queue.meta, 'session', 'gateway', 'socket', 'term', 'sequence', 'ended')
  local gateway = meta[2]
  if restored ~= '' and restored == meta[6] then return { 'taken' } end
  if gateway then
    local same = gateway == actor and meta[3] == socket and meta[1] == session
    if same or (restored ~= '' and restored == meta[4]) then return { 'kept', meta[4] } end
    local later = asked_ms ~= '' and tonumber(meta[4]) > tonumber(asked_ms) * 1000
    if (restored ~= '' or later) and alive(KEYS[3], gateway, known) then
      return { later and 'late' or 'taken' }
    end
    begin_grace(queue, KEYS[4], name, now_ms + grace_ms)
    note('session_replaced', meta[1], { k = name, n = gateway })
    call('PUBLISH', ARGV[5] .. gateway, 'replaced\n' .. meta[4] .. ' ' .. name)
  end
  if not meta[5] then begin_epoch(queue) end
  local term = digits(next_sequence(meta[5]))
  call('HSET', queue.meta, 'session', session, 'gateway', actor, 'socket', socket,
    'term', term, 'sequence', term)
  call('SADD', KEYS[5], name)
  note('session_opened', session, { k = name, n = actor })
  return { 'opened', term }
end

local replies = {}
for item = 1, tonumber(ARGV[6]) do
  local at = 7 + (item - 1) * 5
  replies[item] = open(6 + (item - 1) * QUEUE_KEYS, ARGV[at], ARGV[at + 1], ARGV[at + 2],
    ARGV[at + 3], ARGV[at + 4])
end
journal_append('pickup')
return replies
