#!lua
-- Guarantee: at most one holder at a time; each new holding has a term greater than any before.
-- KEYS: 3 lock (string «term:holder»), 4 term counter
-- ARGV: 4 holder, 5 lease_ms
-- Returns: {'acquired', term} | {'held', term} by the caller | {'refused', term, holder, ms left}

-- Events: acquired (module lease)
-- Repeats: safe, the second call answers 'held' with the same term
-- include: transition
local holder, lease_ms = ARGV[4], ARGV[5]
local value = redis.call('GET', KEYS[3])
if value then
  local term, owner = string.match(value, '^(%d+):(.*)$')
  if owner == holder then
    redis.call('PEXPIRE', KEYS[3], lease_ms)
    return { 'held', tonumber(term) }
  end
  return { 'refused', tonumber(term) or 0, owner or value, redis.call('PTTL', KEYS[3]) }
end
local term = redis.call('INCR', KEYS[4])
redis.call('SET', KEYS[3], string.format('%.0f', term) .. ':' .. holder, 'PX', lease_ms)
note('acquired', KEYS[3], { a = term, n = holder })
journal_append('lease')
return { 'acquired', term }
