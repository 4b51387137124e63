#!lua flags=allow-oom
-- Guarantee: at most one holder at a time; each new holding has a term greater than any before.
-- Events: acquired (module lease)
-- Repeats: safe, the second call answers 'held' with the same term
-- include: transition
local value = redis.call('GET', lock_key) -- «term:holder»
if value then
  local term, owner = string.match(value, '^(%d+):(.*)$')
  if owner == holder then
    redis.call('PEXPIRE', lock_key, lease_ms)
    return reply.held(tonumber(term))
  end
  return reply.refused(owner or value, redis.call('PTTL', lock_key))
end
local term = redis.call('INCR', term_key)
redis.call('SET', lock_key, string.format('%.0f', term) .. ':' .. holder, 'PX', lease_ms)
note('acquired', lock_key, { a = term, n = holder })
journal_append('lease')
return reply.acquired(term)
