-- Assigns recipient keys to instances, and moves them.
local moves_left = moves_max

-- Silent, and a message waits for one of its keys or its keys are being moved already.
local function is_stale(uid)
  return is_silent(uid) and (layout.moving(uid) or layout.has_mail(uid))
end

local ANY, NOT_STALE, LIVE = 'any', 'not_stale', 'live'
local function qualifies(uid, at_least)
  if at_least == LIVE then return layout.live(uid) end
  return at_least == ANY or not is_stale(uid)
end

-- The next instance in turn that qualifies, or nil. The turn wraps at the end.
local function next_in_turn(at_least, ignored)
  local uids = layout.uids()
  local start = tonumber(redis.call('GET', iterator_key)) or 0
  for step = 0, #uids - 1 do
    local place = (start + step) % #uids
    local uid = uids[place + 1]
    if uid ~= ignored and qualifies(uid, at_least) then
      redis.call('SET', iterator_key, (place + 1) % #uids)
      return uid
    end
  end
  return nil
end

-- A stale instance gets a key only when there is no other.
local function get_new_valid_uid()
  return next_in_turn(LIVE) or next_in_turn(NOT_STALE) or next_in_turn(ANY)
end

-- Assigns a key without an owner, with the messages kept for it; nil without any instance.
local function assign_recip_key_to_new_uid(key)
  local uid = get_new_valid_uid()
  if not uid then return nil end
  local kept = count_of('', key)
  set_owner(key, uid)
  layout.add_key(uid, key)
  redis.call('HSET', counts_key, uid .. '_' .. key, kept)
  if kept >= 1 then
    redis.call('HDEL', counts_key, '_' .. key)
    layout.ready(uid, key)
  end
  note('assigned', key, { k = key, o = uid })
  return uid
end

local function move_key(key, old, new, why)
  local count = count_of(old, key)
  if count >= 1 and layout.in_hand(old, key) then lost_in_hand(key) end
  moves_left = moves_left - 1
  layout.drop_key(old, key)
  redis.call('HDEL', counts_key, old .. '_' .. key)
  set_owner(key, new)
  layout.add_key(new, key)
  if count >= 1 then
    redis.call('HINCRBY', counts_key, new .. '_' .. key, count)
    layout.ready(new, key)
  elseif layout_name == 'native' then
    redis.call('HSET', counts_key, new .. '_' .. key, 0)  -- without a count it would seem unused
  end
  note('reassigned', key, { k = key, o = new, n = old, a = count, d = why })
end

-- To the next live instance other than the old one; nil if there is none, and the key stays.
local function reassign_recip_key_to_uid(old, key)
  local new = next_in_turn(LIVE, old)
  if not new then return nil end
  move_key(key, old, new, 'silent_ms=' .. string.format('%.0f', layout.silent_ms(old) or -1))
  return new
end

-- Moves the keys of a stale instance, as many as the call may still move; marks the instance if keys
-- are left. Returns how many moved, and whether keys are left to move.
local function reassign_uid(old)
  local before = moves_left
  while moves_left > 0 do
    local keys = layout.some_keys(old, moves_left)
    if #keys == 0 then break end
    for _, key in ipairs(keys) do
      if moves_left == 0 then break end
      if not reassign_recip_key_to_uid(old, key) then return before - moves_left, false end
    end
  end
  if layout.size(old) > 0 then
    layout.mark_moving(old)
    return before - moves_left, true
  end
  layout.remove(old)
  note('removed', old, { o = old, a = before - moves_left })
  return before - moves_left, false
end

-- The key has no owner any more. Its messages are kept for the next one; without messages nothing of
-- it is stored.
local function forget_owner(old, key)
  local count = count_of(old, key)
  if count >= 1 and layout.in_hand(old, key) then lost_in_hand(key) end
  moves_left = moves_left - 1
  layout.forget_key(old, key)
  redis.call('HDEL', counts_key, old .. '_' .. key)
  redis.call('HDEL', owners_key, key)
  owners[key] = false
  if count >= 1 then
    redis.call('HINCRBY', counts_key, '_' .. key, count)
    layout.ready('', key)
  end
  note('forgotten', key, { k = key, o = old, a = count })
end

-- Removes an instance; its keys lose their owner. Returns whether keys are left for another call.
local function forget_uid(uid)
  while moves_left > 0 do
    local keys = layout.some_keys(uid, moves_left)
    if #keys == 0 then break end
    for i = 1, math.min(#keys, moves_left) do forget_owner(uid, keys[i]) end
  end
  if layout.size(uid) > 0 then return true end
  layout.remove(uid)
  note('removed', uid, { o = uid })
  return false
end

-- The owner of a key that gets a message and whose owner is silent. Checked for each message, because
-- the message before may have made the owner stale. Moves each key that gets a message at once, and the
-- owner's other keys once in a call. Once the call has moved its share, messages wait at the old owner
-- until the next sweep.
local moved_from = {}
local function owner_after_move(key, uid)
  if moves_left <= 0 or not is_stale(uid) then return uid end
  local new = reassign_recip_key_to_uid(uid, key)
  if not new then return uid end
  if not moved_from[uid] then
    moved_from[uid] = true
    reassign_uid(uid)
  end
  return new
end
