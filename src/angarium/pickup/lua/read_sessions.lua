#!lua flags=no-writes
-- Guarantee: reports the live session of each queue, and whether the queue has pending messages.
-- Events: none
-- Repeats: safe
-- include: transition
-- include: queue
local known = {}
return each_item(function(queue, meta_key, pending_key)
  local meta = call('HMGET', meta_key, 'session', 'gateway', 'term', 'archived', 'held')
  if not meta[2] or not alive(gateways_key, meta[2], known) then return reply.offline end
  local pending = call('EXISTS', pending_key) == 1
    or (tonumber(meta[4]) or 0) > (tonumber(meta[5]) or 0)
  return reply.live(meta[1], meta[2], meta[3], pending and 1 or 0)
end)
