#!lua
-- Guarantee: the counters of a queue's archived messages agree with the database before any script
-- relies on them. Complete counters can't be overwritten.
-- Events: none, no message changes
-- Repeats: safe
-- include: transition
-- include: queue
if call('EXISTS', charted_key) == 1 then return reply.complete end
each_item(function(queue, archived, archived_bytes, meta_key)
  local keys = { meta = meta_key }
  local bytes = field(keys, 'bytes') - field(keys, 'archived_bytes') + archived_bytes
  if not call('HGET', keys.meta, 'cleared') then begin_epoch(keys) end
  call('HSET', keys.meta, 'archived', archived, 'bytes', digits(bytes),
    'archived_bytes', digits(archived_bytes))
end)
if last then call('SET', charted_key, 1) end
return reply.written
