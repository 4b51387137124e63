#!lua
-- Guarantee: the counters of a queue's archived messages agree with the database before any script
-- relies on them. Complete counters can't be overwritten.
-- KEYS: 3 charted; per item the six of its queue
-- ARGV: 4 1 if these are the last, 5 number of items; per item: archived messages, their bytes
-- Returns: {'written'} | {'complete'} (they were complete before)
-- Events: none, no message changes
-- Repeats: safe
-- include: transition
-- include: queue
if call('EXISTS', KEYS[3]) == 1 then return { 'complete' } end
for item = 1, tonumber(ARGV[5]) do
  local queue = queue_at(4 + (item - 1) * QUEUE_KEYS)
  local bytes = field(queue, 'bytes') - field(queue, 'archived_bytes') + tonumber(ARGV[5 + 2 * item])
  if not call('HGET', queue.meta, 'cleared') then begin_epoch(queue) end
  call('HSET', queue.meta, 'archived', ARGV[4 + 2 * item], 'bytes', digits(bytes),
    'archived_bytes', ARGV[5 + 2 * item])
end
if ARGV[4] == '1' then call('SET', KEYS[3], 1) end
return { 'written' }
