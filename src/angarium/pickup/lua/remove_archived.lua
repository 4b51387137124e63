#!lua
-- Guarantee: archived messages are removed for every reader at once; the persister deletes their
-- rows later. The caller read the rows when the queue's 'cleared' was as given. If it has changed,
-- the caller has to read them again, or one message could be removed twice.
-- KEYS: 3 burials; then the six of the queue
-- ARGV: 4 queue, 5 the event to note, 6 'cleared' of the queue, 7 hint channel without the gateway,
-- then: id, record bytes, …
-- Returns: {'removed', count} | {'again'}
-- Events: delivered, cancelled (module pickup)
-- Repeats: safe, by id
-- include: transition
-- include: queue
local queue, name, event = queue_at(4), ARGV[4], ARGV[5]
if (call('HGET', queue.meta, 'cleared') or '') ~= ARGV[6] then return { 'again' } end
local removed, held, bytes = 0, 0, 0
for at = 8, #ARGV, 2 do
  local id = ARGV[at]
  if call('HEXISTS', queue.messages, id) == 0 and call('SADD', queue.removed, id) == 1 then
    removed, bytes = removed + 1, bytes + tonumber(ARGV[at + 1])
    held = held + call('ZREM', queue.sending, id)
    note_message(event, id, name)
  end
end
if removed > 0 then
  call('SADD', KEYS[3], name)
  call('HINCRBY', queue.meta, 'archived', -removed)
  call('HINCRBY', queue.meta, 'held', -held)
  call('HINCRBY', queue.meta, 'bytes', digits(-bytes))
  local meta = call('HMGET', queue.meta, 'grace', 'gateway')
  if meta[1] and meta[2] and not in_grace(queue, meta[1]) then
    call('PUBLISH', ARGV[7] .. meta[2], 'mail\n' .. name)
  end
end
journal_append('pickup')
return { 'removed', removed }
