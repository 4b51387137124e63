-- Remove the members that did not renew their entry within ttl_ms; the names of the others.
local function live_members()
  local oldest = string.format('(%.0f', now_ms - ttl_ms)
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', seen_key, '-inf', oldest)) do
    redis.call('ZREM', seen_key, member)
    redis.call('LREM', members_key, 0, member)
  end
  return redis.call('LRANGE', members_key, 0, -1)
end
