#!lua
-- Guarantee: what a queue has in the database is written down as the database says, before
-- anybody relies on it; once the chart is complete it can't be overwritten.
-- KEYS: 3 charted; per item the six of its queue
-- ARGV: 4 1 if these are the last, 5 number of items; per item: archived messages, their bytes
-- Returns: {'charted'} | {'complete'} it was already
-- Events: none, it only finds again what was there
-- Repeats: safe
-- include: transition
-- include: queue
if call('EXISTS', KEYS[3]) == 1 then return { 'complete' } end
for item = 1, tonumber(ARGV[5]) do
  local queue = queue_at(4 + (item - 1) * QUEUE_KEYS)
  local bytes = field(queue, 'bytes') - field(queue, 'archived_bytes') + tonumber(ARGV[5 + 2 * item])
  if not call('HGET', queue.meta, 'cleared') then begin_life(queue) end
  call('HSET', queue.meta, 'archived', ARGV[4 + 2 * item], 'bytes', digits(bytes),
    'archived_bytes', ARGV[5 + 2 * item])
end
if ARGV[4] == '1' then call('SET', KEYS[3], 1) end
return { 'charted' }
