#!lua
-- Guarantee: removed messages are forgotten after their rows are deleted. 'cleared' changes, so
-- callers that read the rows before read them again.
-- KEYS: 3 burials; then the six of the queue
-- ARGV: 4 queue, then ids whose rows are deleted
-- Returns: {'cleared'}
-- Events: none, the removal added the event
-- Repeats: safe
-- include: transition
-- include: queue
local queue = queue_at(4)
for at = 5, #ARGV do call('SREM', queue.removed, ARGV[at]) end
if call('EXISTS', queue.meta) == 1 then
  call('HSET', queue.meta, 'cleared', digits(now_ms) .. '-' .. digits(field(queue, 'moves'))
    .. '-' .. ARGV[#ARGV])
end
if call('EXISTS', queue.removed) == 0 then call('SREM', KEYS[3], ARGV[4]) end
delete_if_unused(queue)
return { 'cleared' }
