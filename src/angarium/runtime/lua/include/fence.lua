-- A write under a lease passes its term; if a newer term exists, the write is refused.

local function fenced_off(term_key, term)
  local newest = redis.call('GET', term_key)
  return not newest or tonumber(newest) ~= tonumber(term)
end
