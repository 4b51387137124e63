-- The functions of layout `native` that the frequent scripts need, and those that both layouts share.
-- `layout_native_rest` has the others: creating a function costs every call.
-- `native`: `keys` is a sorted set, key -> number of its instance. `access` holds «ms:number», and
-- «:moving» at the end while the keys of a stale instance are moved. `mail` is a sorted set of the
-- keys that have messages: one band of scores for each instance and state, inside a band by time.
-- Keys without an owner have the number 0 and the uid ''.
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

-- Reads the owners together: one call for many costs little more than one for each.
local function read_owners(wanted)
  for start = 1, #wanted, 1000 do
    local last = math.min(#wanted, start + 999)
    for i, uid in ipairs(redis.call('HMGET', owners_key, unpack(wanted, start, last))) do
      owners[wanted[start + i - 1]] = uid
    end
  end
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

function native.number(uid)
  if uid == '' then return 0 end
  local entry = native.entry(uid)
  return entry and entry.number
end

function native.silent_ms(uid)
  local entry = native.entry(uid)
  return entry and now_ms - entry.ms
end

function native.known(uid) return native.entry(uid) ~= nil end

function native.touch(uid)
  local entry = native.entry(uid)
  native.write(uid, { ms = now_ms, number = entry.number })
end

-- Keys whose messages the instance has in hand.
function native.in_hand_keys(uid)
  local number = native.number(uid)
  return redis.call('ZRANGEBYSCORE', mail_key, exactly(band(number, CLAIMED)),
    below(band(number + 1, READY)))
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

local function is_silent(uid)
  local silent_ms = layout.silent_ms(uid)
  return silent_ms and silent_ms > stale_after_ms
end

-- The end of every script that changes something: writes the changes, and notifies the instances that
-- got messages.
local function write_changes()
  write_ready()
  layout.flush()
  for uid in pairs(woken) do redis.call('PUBLISH', wake .. uid, partition) end
  journal_append('routing')
end
