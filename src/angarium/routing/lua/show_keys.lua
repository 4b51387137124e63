#!lua flags=no-writes
-- Guarantee: the state of each key at one moment.
-- Events: none
-- Repeats: safe
-- include: transition
-- include: attempts
-- include: layout_native
-- include: layout_native_rest
-- include: layout_acapy
return each_item(function(recip_key, list_key)
  local uid = owner_of(recip_key) or ''
  return reply.shown(uid, count_of(uid, recip_key), redis.call('LLEN', list_key),
    uid ~= '' and layout.silent_ms(uid) or -1)
end)
