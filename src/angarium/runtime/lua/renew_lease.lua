#!lua flags=allow-oom
-- Guarantee: only the holder of the current term can extend the lock; an expired lease stays lost.
-- Events: none, a renewal does not change the holder
-- Repeats: safe
-- include: transition
if redis.call('GET', lock_key) ~= string.format('%.0f', term) .. ':' .. holder then
  return reply.lost
end
redis.call('PEXPIRE', lock_key, lease_ms)
return reply.renewed
