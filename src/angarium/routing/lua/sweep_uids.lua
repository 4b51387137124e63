#!lua
-- Guarantee: assigns keys with messages and without an owner, moves the keys of stale instances, removes
-- instances that are gone, and forgets keys that nobody has used for two rounds of key_keep_ms at most.
-- Each call looks at some instances and some keys and changes at most moves_max keys.
-- Events: assigned, reassigned, removed, forgotten
-- Repeats: safe
-- include: transition
-- include: attempts
-- include: layout_native
-- include: layout_native_rest
-- include: layout_acapy
-- include: assignment
local assigned, moved, removed, forgotten, more = 0, 0, 0, 0, 0

local function assign_kept()
  for _, key in ipairs(redis.call('ZRANGEBYSCORE', mail_key, 0, below(BAND), 'LIMIT', 0, moves_max)) do
    -- In layout acapy another program may have assigned the key.
    if owner_of(key) then
      redis.call('ZREM', mail_key, key)
    elseif assign_recip_key_to_new_uid(key) then
      assigned, moves_left = assigned + 1, moves_left - 1
    else
      break
    end
  end
end

local function look_at(uid)
  -- A heartbeat in the future: the clock was set back since. Live instances renew it soon.
  if (layout.silent_ms(uid) or 0) < 0 then layout.touch(uid) end
  if is_stale(uid) then
    local some, left = reassign_uid(uid)
    moved = moved + some
    return left
  elseif layout.is_gone(uid, instance_keep_ms) then
    local before = moves_left
    local left = forget_uid(uid)
    forgotten = forgotten + before - moves_left
    if not left then removed = removed + 1 end
    return left
  end
  return false
end

local function look_at_some()
  local following, uids = layout.some_uids(redis.call('HGET', sweep_key, 'uids') or '0')
  for _, uid in ipairs(uids) do
    if moves_left <= 0 or look_at(uid) then
      more = 1
      return
    end
  end
  redis.call('HSET', sweep_key, 'uids', following)
end

-- The count of a key that is used exists; a round removes it if it is 0. A key without a count was not
-- used since the round before. So use costs nothing to record.
local function forget_unused(key, uid, count)
  if count and tonumber(count) > 0 or redis.call('ZSCORE', mail_key, key) then return end
  if count and not forget_idle then
    redis.call('HDEL', counts_key, uid .. '_' .. key)
  else
    forget_owner(uid, key)
    forgotten = forgotten + 1
  end
end

-- Whether the round over all keys goes on.
local function age_some_keys()
  local cursor, at_ms = unpack(redis.call('HMGET', sweep_key, 'keys', 'keys_at'))
  cursor, at_ms = cursor or '0', tonumber(at_ms) or 0
  if cursor == '0' then
    if now_ms >= at_ms and now_ms - at_ms < key_keep_ms then return 0 end
    redis.call('HSET', sweep_key, 'keys_at', exactly(now_ms))
    if at_ms == 0 and not forget_idle then return 0 end
  end
  local found = redis.call('HSCAN', owners_key, cursor, 'COUNT', 100)
  local pairs_found = found[2]
  for i = 1, #pairs_found, 2 do
    local key, uid = pairs_found[i], pairs_found[i + 1]
    forget_unused(key, uid, redis.call('HGET', counts_key, uid .. '_' .. key))
  end
  redis.call('HSET', sweep_key, 'keys', found[1])
  return found[1] == '0' and 0 or 1
end

assign_kept()
if moves_left <= 0 then more = 1 end
look_at_some()
local aging = 0
-- Other programs of layout acapy keep lists of their own.
if layout_name == 'native' and moves_left > 0 then aging = age_some_keys() end
write_changes()
return reply.swept(assigned, moved, removed, forgotten, more, aging, #layout.uids())
