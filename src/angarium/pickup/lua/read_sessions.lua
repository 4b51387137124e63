#!lua flags=no-writes
-- Guarantee: reports the live session of each queue, and whether the queue has pending messages.
-- KEYS: 3 gateways; per item the six of its queue
-- ARGV: 4 number of items
-- Returns: per item {'live', session, gateway, term, 1 if messages are pending} | {'offline'}
-- Events: none
-- Repeats: safe
-- include: transition
-- include: queue
local replies, known = {}, {}
for item = 1, tonumber(ARGV[4]) do
  local queue = queue_at(4 + (item - 1) * QUEUE_KEYS)
  local meta = call('HMGET', queue.meta, 'session', 'gateway', 'term', 'archived', 'held')
  if meta[2] and alive(KEYS[3], meta[2], known) then
    local pending = call('EXISTS', queue.pending) == 1
      or (tonumber(meta[4]) or 0) > (tonumber(meta[5]) or 0)
    replies[item] = { 'live', meta[1], meta[2], meta[3], pending and 1 or 0 }
  else
    replies[item] = { 'offline' }
  end
end
return replies
