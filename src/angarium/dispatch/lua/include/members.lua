-- Remove the members of a list that did not renew their entry within ttl_ms; the others.
local function live_members(list_key, seen_key, ttl_ms)
  local oldest = string.format('(%.0f', now_ms - tonumber(ttl_ms))
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', seen_key, '-inf', oldest)) do
    redis.call('ZREM', seen_key, member)
    redis.call('LREM', list_key, 0, member)
  end
  return redis.call('LRANGE', list_key, 0, -1)
end
