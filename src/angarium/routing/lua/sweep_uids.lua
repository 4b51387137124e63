#!lua
-- Guarantee: assigns keys with messages and without an owner, moves the keys of stale instances, and
-- removes silent instances without keys. It assigns at most moves_max keys, moves at most moves_max of
-- one instance, and goes to no further instance once moves_max have moved.
-- KEYS: 3 counts, 4 iterator, 5 keys by instance, 6 owners, 7 last access, 8 mail
-- ARGV: 4-8 as in include/layout_native
-- Returns: {'swept', keys assigned, keys moved, 1 if there is more to do, number of instances}
-- Events: assigned, reassigned, removed
-- Repeats: safe
-- include: transition
-- include: layout_native
-- include: layout_acapy
-- include: assignment
local assigned, moved, more = 0, 0, 0
local kept = redis.call('ZRANGEBYSCORE', mail_key, 0, below(BAND), 'LIMIT', 0, moves_max)
for _, key in ipairs(kept) do
  -- In layout acapy another program may have assigned the key.
  if owner_of(key) then
    redis.call('ZREM', mail_key, key)
  elseif assign_recip_key_to_new_uid(key) then
    assigned = assigned + 1
  else
    break
  end
end
if assigned == moves_max then more = 1 end
for _, uid in ipairs(layout.uids()) do
  -- A heartbeat in the future: the clock was set back since. Live instances renew it soon.
  if (layout.silent_ms(uid) or 0) < 0 then layout.touch(uid) end
  if moved >= moves_max then
    more = 1
    break
  elseif is_stale(uid) then
    local count, left = reassign_uid(uid)
    moved = moved + count
    if left then more = 1 end
  elseif ARGV[4] == 'native' and is_silent(uid) and layout.size(uid) == 0 then
    layout.remove(uid)
    note('removed', uid, { o = uid })
  end
end
write_changes()
return { 'swept', assigned, moved, more, #layout.uids() }
