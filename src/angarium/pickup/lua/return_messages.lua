#!lua
-- Guarantee: taken messages whose answer never left the gateway are pending again, in their old
-- position. Messages that another reader has by now, or that were removed, stay unchanged.
-- KEYS: 3 gateways; then the six of the queue
-- ARGV: 4 queue, 5 hint channel without the gateway, then: id, the time that the take named for it, …
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
    returned, archived = returned + 1, archived + make_pending(queue, name, ARGV[at])
  end
end
if archived > 0 then call('HINCRBY', queue.meta, 'held', -archived) end
local gateway = returned > 0 and call('HGET', queue.meta, 'gateway')
if gateway and alive(KEYS[3], gateway, {}) then
  call('PUBLISH', hints .. gateway, 'mail\n' .. name)
end
journal_append('pickup')
return { 'returned', returned }
