#!lua
-- Guarantee: messages that were taken, and whose answer never left the gateway, are pending again, in
-- their old place. One that is somebody else's by now, or was removed, stays as it is.
-- KEYS: 3 gateways; then the six of the queue
-- ARGV: 4 queue, 5 hint channel without the gateway, then: id, when the taker was told that it would
-- be pending again, …
-- Returns: {'returned', count}
-- Events: returned (module pickup)
-- Repeats: safe, by id and time
-- include: transition
-- include: queue
local queue, name, hints = queue_at(4), ARGV[4], ARGV[5]
local returned, archived = 0, 0
for at = 6, #ARGV, 2 do
  local score = call('ZSCORE', queue.sending, ARGV[at])
  if score and digits(tonumber(score)) == ARGV[at + 1] then
    returned, archived = returned + 1, archived + put_back(queue, name, ARGV[at])
  end
end
if archived > 0 then call('HINCRBY', queue.meta, 'held', -archived) end
local gateway = returned > 0 and call('HGET', queue.meta, 'gateway')
if gateway and alive(KEYS[3], gateway, {}) then
  call('PUBLISH', hints .. gateway, 'mail\n' .. name)
end
journal_append('pickup')
return { 'returned', returned }
