-- Assigns recipient keys to instances, and moves them.
local function is_silent(uid)
  local silent_ms = layout.silent_ms(uid)
  return silent_ms and silent_ms > stale_after_ms
end

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
  layout.drop_key(old, key)
  redis.call('HDEL', counts_key, old .. '_' .. key)
  set_owner(key, new)
  layout.add_key(new, key)
  if count >= 1 then
    redis.call('HINCRBY', counts_key, new .. '_' .. key, count)
    layout.ready(new, key)
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

-- Moves the keys of a stale instance, at most moves_max; marks the instance if keys are left.
-- Returns how many moved, and whether keys are left to move.
local function reassign_uid(old)
  local moved = 0
  while moved < moves_max do
    local keys = layout.some_keys(old, moves_max - moved)
    if #keys == 0 then break end
    for _, key in ipairs(keys) do
      if not reassign_recip_key_to_uid(old, key) then return moved, false end
      moved = moved + 1
    end
  end
  if layout.size(old) > 0 then
    layout.mark_moving(old)
    return moved, true
  end
  layout.remove(old)
  note('removed', old, { o = old, a = moved })
  return moved, false
end
