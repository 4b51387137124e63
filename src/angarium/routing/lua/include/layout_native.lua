-- The functions of layout `native`, and those that both layouts share.
--   KEYS  3 counts, 4 iterator, 5 keys by instance, 6 owners, 7 last access, 8 mail
--   ARGV  4 layout, 5 stale_after_ms, 6 moves_max, 7 wake channel, 8 partition
-- `native`: 5 is a sorted set, key -> number of its instance. 7 holds «ms:number», and «:moving» at
-- the end while the keys of a stale instance are moved. 8 is a sorted set of the keys that have
-- messages: one band of scores for each instance and state, inside a band by time. Keys without an
-- owner have the number 0 and the uid ''.
local counts_key, iterator_key, keys_key = KEYS[3], KEYS[4], KEYS[5]
local owners_key, access_key, mail_key = KEYS[6], KEYS[7], KEYS[8]
local stale_after_ms, moves_max = tonumber(ARGV[5]), tonumber(ARGV[6])
local BAND, READY, CLAIMED = 2 ^ 39, 0, 1
local NUMBERS_MAX = 8191
-- Hundredths of a second: exact enough for the order, and small enough for a band.
local tick = math.floor(now_ms / 10)
local woken = {}

local function band(number, state) return (2 * number + state) * BAND end
local function below(score) return '(' .. string.format('%.0f', score) end
local function exactly(score) return string.format('%.0f', score) end

-- Owners that this call has read or changed; false for a key without an owner.
local owners = {}

local function owner_of(key)
  local owner = owners[key]
  if owner == nil then
    owner = redis.call('HGET', owners_key, key)
    owners[key] = owner
  end
  return owner
end

local function set_owner(key, uid)
  redis.call('HSET', owners_key, key, uid)
  owners[key] = uid
end

local function count_of(uid, key)
  return tonumber(redis.call('HGET', counts_key, uid .. '_' .. key)) or 0
end

-- Scores and keys that became ready in this call; written together at the end, or before a read.
local newly_ready = {}
local function write_ready()
  if #newly_ready == 0 then return end
  for start = 1, #newly_ready, 2000 do
    redis.call('ZADD', mail_key, unpack(newly_ready, start, math.min(start + 1999, #newly_ready)))
  end
  newly_ready = {}
end

local native, entries = {}, {}

function native.entry(uid)
  local entry = entries[uid]
  if entry then return entry end
  local value = redis.call('HGET', access_key, uid)
  if not value then return nil end
  local ms, number, moving = string.match(value, '^(%d+):(%d+)(:?%l*)$')
  entry = { ms = tonumber(ms), number = tonumber(number), moving = moving == ':moving' }
  entries[uid] = entry
  return entry
end

function native.write(uid, entry)
  entries[uid] = entry
  redis.call('HSET', access_key, uid, exactly(entry.ms) .. ':' .. entry.number
    .. (entry.moving and ':moving' or ''))
end

-- In the order of the turns; read once in a call, unless the instances change.
local uids_known
function native.uids()
  uids_known = uids_known or redis.call('HKEYS', access_key)
  return uids_known
end

function native.number(uid)
  if uid == '' then return 0 end
  local entry = native.entry(uid)
  return entry and entry.number
end

function native.silent_ms(uid)
  local entry = native.entry(uid)
  return entry and now_ms - entry.ms
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
  for _, other in ipairs(native.uids()) do taken[native.entry(other).number] = true end
  local number = 1
  while taken[number] do number = number + 1 end
  if number > NUMBERS_MAX then return false end
  native.write(uid, { ms = now_ms, number = number })
  uids_known = nil
  return true
end

function native.known(uid) return native.entry(uid) ~= nil end

function native.touch(uid)
  local entry = native.entry(uid)
  native.write(uid, { ms = now_ms, number = entry.number })
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
  entries[uid], uids_known = nil, nil
end

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

function native.ready(uid, key)
  -- An owner without a last access is not stale; its number is known from its key.
  local number = native.number(uid) or tonumber(redis.call('ZSCORE', keys_key, key))
  newly_ready[#newly_ready + 1] = band(number, READY) + tick
  newly_ready[#newly_ready + 1] = key
  if uid ~= '' then woken[uid] = true end
end

function native.flush() end

local layout = native

-- The end of every script that changes something: writes the changes, and notifies the instances that
-- got messages.
local function write_changes()
  write_ready()
  layout.flush()
  for uid in pairs(woken) do redis.call('PUBLISH', ARGV[7] .. uid, ARGV[8]) end
  journal_append('routing')
end
