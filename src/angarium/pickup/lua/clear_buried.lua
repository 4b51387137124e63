#!lua
-- Guarantee: marks go when their rows are gone, and whoever looked at the rows before is told.
-- KEYS: 3 burials; then the six of the queue
-- ARGV: 4 queue, then ids whose rows are gone
-- Returns: {'cleared'}
-- Events: none, the removal was noted when it was made
-- Repeats: safe
-- include: transition
-- include: queue
local queue = queue_at(4)
for at = 5, #ARGV do call('SREM', queue.buried, ARGV[at]) end
if call('EXISTS', queue.meta) == 1 then
  call('HSET', queue.meta, 'cleared', digits(now_ms) .. '-' .. digits(field(queue, 'moves'))
    .. '-' .. ARGV[#ARGV])
end
if call('EXISTS', queue.buried) == 0 then call('SREM', KEYS[3], ARGV[4]) end
tidy(queue)
return { 'cleared' }
