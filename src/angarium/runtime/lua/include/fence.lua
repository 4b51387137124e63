-- A write made under a lease passes its term; a newer term anywhere means it comes too late.
local function fenced_off(term_key, term)
  local newest = redis.call('GET', term_key)
  return not newest or tonumber(newest) ~= tonumber(term)
end
