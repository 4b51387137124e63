#!lua flags=allow-oom
-- Guarantee: only the holder of the current term can release the lock.
-- Events: released (module lease)
-- Repeats: safe, the second call answers 'lost'
-- include: transition
if redis.call('GET', lock_key) ~= string.format('%.0f', term) .. ':' .. holder then
  return reply.lost
end
redis.call('DEL', lock_key)
note('released', lock_key, { a = term, n = holder })
journal_append('lease')
return reply.released
