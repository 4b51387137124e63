-- The other functions of layout `native`, and of both layouts. Needs `layout_native`.
local function set_owner(key, uid)
  redis.call('HSET', owners_key, key, uid)
  owners[key] = uid
end

local function count_of(uid, key)
  return tonumber(redis.call('HGET', counts_key, uid .. '_' .. key)) or 0
end

-- In the order of the turns; read once in a call, unless the instances change.
local uids_known
function native.uids()
  uids_known = uids_known or redis.call('HKEYS', access_key)
  return uids_known
end

function native.moving(uid)
  local entry = native.entry(uid)
  return entry and entry.moving
end

function native.has_mail(uid)
  local number = native.number(uid)
  if not number then return false end
  write_ready()
  return redis.call('ZCOUNT', mail_key, exactly(band(number, READY)), below(band(number + 1, READY))) > 0
end

-- Whether it gets new keys; a silent instance has probably ended.
function native.live(uid)
  local silent_ms = native.silent_ms(uid)
  return silent_ms and silent_ms <= stale_after_ms
end

function native.register(uid)
  local taken = {}
  for _, value in ipairs(redis.call('HVALS', access_key)) do
    taken[tonumber(string.match(value, '^%d+:(%d+)'))] = true
  end
  local number = 1
  while taken[number] do number = number + 1 end
  if number > NUMBERS_MAX then return false end
  native.write(uid, { ms = now_ms, number = number })
  uids_known = nil
  return true
end

function native.retire(uid)
  local entry = native.entry(uid)
  native.write(uid, { ms = 0, number = entry.number, moving = entry.moving })
end

function native.mark_moving(uid)
  local entry = native.entry(uid)
  if not entry.moving then
    native.write(uid, { ms = entry.ms, number = entry.number, moving = true })
  end
end

function native.remove(uid)
  redis.call('HDEL', access_key, uid)
  redis.call('HDEL', sessions_key, uid)
  entries[uid], uids_known = nil, nil
end

function native.in_hand(uid, key)
  local number, score = native.number(uid), tonumber(redis.call('ZSCORE', mail_key, key))
  return number and score and score >= band(number, CLAIMED) and score < band(number + 1, READY)
end

-- Some instances, and the cursor of the next ones.
function native.some_uids(cursor)
  local found = redis.call('HSCAN', access_key, cursor, 'COUNT', 100)
  local uids = {}
  for i = 1, #found[2], 2 do uids[#uids + 1] = found[2][i] end
  return found[1], uids
end

-- Nobody waits for it, or nothing has been heard of it for so long that nobody will.
function native.is_gone(uid, keep_ms)
  return is_silent(uid) and (native.size(uid) == 0 or native.silent_ms(uid) > keep_ms)
end

function native.forget_key(_, key) redis.call('ZREM', keys_key, key) end
function native.add_key(uid, key) redis.call('ZADD', keys_key, native.number(uid), key) end
function native.drop_key() end  -- add_key replaces the number of the old owner

function native.size(uid)
  local number = native.number(uid)
  return redis.call('ZCOUNT', keys_key, number, number)
end

-- Keys with messages first: those must not wait.
function native.some_keys(uid, keys_max)
  local number = native.number(uid)
  write_ready()
  local found = redis.call('ZRANGEBYSCORE', mail_key, exactly(band(number, READY)),
    below(band(number + 1, READY)), 'LIMIT', 0, keys_max)
  if #found > 0 then return found end
  return redis.call('ZRANGEBYSCORE', keys_key, number, number, 'LIMIT', 0, keys_max)
end
