-- The routing room's structures behind one set of functions, in either layout.
--   KEYS  3 counts, 4 iterator, 5 keys by instance, 6 owners, 7 last access, 8 mail
--   ARGV  4 layout, 5 stale_after_ms, 6 moves_max, 7 wake channel, 8 partition
-- `native`: 5 is a sorted set, key -> number of its instance; 7 holds «ms:number», with
-- «:moving» behind it while the keys of a stale instance are moved. 8 is a sorted set of the
-- keys that have mail: one band of scores for each instance and state, inside a band by time.
-- `acapy`: 5 is a hash, uid -> base64url of a JSON list; 7 holds a date in seconds. 8 only has
-- the band of keys that nobody owns yet. The number of nobody is 0, its uid is ''.
local counts_key, iterator_key, keys_key = KEYS[3], KEYS[4], KEYS[5]
local owners_key, access_key, mail_key = KEYS[6], KEYS[7], KEYS[8]
local stale_after_ms, moves_max = tonumber(ARGV[5]), tonumber(ARGV[6])
local BAND, READY, HELD = 2 ^ 39, 0, 1
local NUMBERS_MAX = 8191
-- Hundredths of a second: fine enough for who came first, and small enough for a band.
local tick = math.floor(now_ms / 10)
local woken = {}

local function band(number, state) return (2 * number + state) * BAND end
local function below(score) return '(' .. string.format('%.0f', score) end
local function exactly(score) return string.format('%.0f', score) end

-- Both layouts: counts and owners.
local function count_of(uid, key)
  return tonumber(redis.call('HGET', counts_key, uid .. '_' .. key)) or 0
end
local function owner_of(key) return redis.call('HGET', owners_key, key) end

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

function native.uids() return redis.call('HKEYS', access_key) end

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
  return redis.call('ZCOUNT', mail_key, exactly(band(number, READY)), below(band(number + 1, READY))) > 0
end

-- Whether a new key may go there while others may do: one that is silent is most likely gone.
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
  entries[uid] = nil
end

function native.add_key(uid, key) redis.call('ZADD', keys_key, native.number(uid), key) end
function native.drop_key() end  -- its new owner's number replaces the old one

function native.size(uid)
  local number = native.number(uid)
  return redis.call('ZCOUNT', keys_key, number, number)
end

-- Those with mail first: theirs is the hurry.
function native.some_keys(uid, keys_max)
  local number = native.number(uid)
  local found = redis.call('ZRANGEBYSCORE', mail_key, exactly(band(number, READY)),
    below(band(number + 1, READY)), 'LIMIT', 0, keys_max)
  if #found > 0 then return found end
  return redis.call('ZRANGEBYSCORE', keys_key, number, number, 'LIMIT', 0, keys_max)
end

function native.ready(uid, key)
  -- An owner without a last access is not stale; its number is known from its key.
  local number = native.number(uid) or tonumber(redis.call('ZSCORE', keys_key, key))
  redis.call('ZADD', mail_key, band(number, READY) + tick, key)
  if uid ~= '' then woken[uid] = true end
end

function native.flush() end

local acapy, lists, dirty = {}, {}, {}
local ALPHABET = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_'

local function base64_encode(text)
  local out = {}
  for i = 1, #text, 3 do
    local a, b, c = string.byte(text, i, i + 2)
    local bits = a * 65536 + (b or 0) * 256 + (c or 0)
    for place = 3, 0, -1 do
      local digit = math.floor(bits / 64 ^ place) % 64
      out[#out + 1] = string.sub(ALPHABET, digit + 1, digit + 1)
    end
    if not b then out[#out - 1] = '=' end
    if not c then out[#out] = '=' end
  end
  return table.concat(out)
end

local function base64_decode(text)
  local values = {}
  for i = 1, 64 do values[string.byte(ALPHABET, i)] = i - 1 end
  values[43], values[47] = 62, 63  -- the usual alphabet's + and /
  local out, bits, held = {}, 0, 0
  for i = 1, #text do
    local value = values[string.byte(text, i)]
    if value then
      bits, held = bits * 64 + value, held + 6
      if held >= 8 then
        held = held - 8
        local high = math.floor(bits / 2 ^ held)
        out[#out + 1] = string.char(high)
        bits = bits - high * 2 ^ held
      end
    end
  end
  return table.concat(out)
end

-- Days since 1970 of a date, and back, for the calendar that the whole world uses.
local function days_of(year, month, day)
  if month <= 2 then year = year - 1 end
  local era = math.floor(year / 400)
  local of_era = year - era * 400
  local of_year = math.floor((153 * (month + (month > 2 and -3 or 9)) + 2) / 5) + day - 1
  return era * 146097 + of_era * 365 + math.floor(of_era / 4) - math.floor(of_era / 100)
    + of_year - 719468
end

local function date_of(ms)
  local seconds = math.floor(ms / 1000)
  local shifted = math.floor(seconds / 86400) + 719468
  local era = math.floor(shifted / 146097)
  local of_era = shifted - era * 146097
  local year_of_era = math.floor((of_era - math.floor(of_era / 1460) + math.floor(of_era / 36524)
    - math.floor(of_era / 146096)) / 365)
  local of_year = of_era - (365 * year_of_era + math.floor(year_of_era / 4)
    - math.floor(year_of_era / 100))
  local shifted_month = math.floor((5 * of_year + 2) / 153)
  local day = of_year - math.floor((153 * shifted_month + 2) / 5) + 1
  local month = shifted_month < 10 and shifted_month + 3 or shifted_month - 9
  local year = year_of_era + era * 400 + (month <= 2 and 1 or 0)
  local rest = seconds % 86400
  return string.format('%04d-%02d-%02dT%02d:%02d:%02dZ', year, month, day,
    math.floor(rest / 3600), math.floor(rest / 60) % 60, rest % 60)
end

local function ms_of(date)
  local year, month, day, hour, minute, second =
    string.match(date or '', '^(%d+)-(%d+)-(%d+)T(%d+):(%d+):(%d+)Z$')
  if not year then return nil end
  local days = days_of(tonumber(year), tonumber(month), tonumber(day))
  return ((days * 24 + tonumber(hour)) * 60 + tonumber(minute)) * 60000 + tonumber(second) * 1000
end

-- A list that is not one is an instance's own mistake; it must not stop the others.
function acapy.list(uid)
  local list = lists[uid]
  if list then return list end
  list = { keys = {}, places = {} }
  local value = redis.call('HGET', keys_key, uid)
  local good, found = pcall(cjson.decode, value and base64_decode(value) or '[]')
  if good and type(found) == 'table' then
    for _, key in ipairs(found) do
      list.keys[#list.keys + 1] = tostring(key)
      list.places[tostring(key)] = #list.keys
    end
  end
  lists[uid] = list
  return list
end

function acapy.uids() return redis.call('HKEYS', keys_key) end
function acapy.number(uid) return uid == '' and 0 or nil end
function acapy.moving() return false end

-- nil where there is no date: never heard of is not the same as silent.
function acapy.silent_ms(uid)
  local at_ms = ms_of(redis.call('HGET', access_key, uid))
  return at_ms and now_ms - at_ms
end

function acapy.has_mail(uid)
  for _, key in ipairs(acapy.list(uid).keys) do
    if count_of(uid, key) >= 1 then return true end
  end
  return false
end

-- A published instance says something only when it handles a message: silence without mail
-- is all that an idle one can give.
function acapy.live(uid)
  local silent_ms = acapy.silent_ms(uid)
  return not silent_ms or silent_ms <= stale_after_ms or not acapy.has_mail(uid)
end

function acapy.known(uid) return redis.call('HEXISTS', keys_key, uid) == 1 end

function acapy.register(uid)
  dirty[uid] = true
  acapy.touch(uid)
  return true
end

function acapy.touch(uid) redis.call('HSET', access_key, uid, date_of(now_ms)) end
function acapy.retire(uid) redis.call('HSET', access_key, uid, date_of(0)) end
function acapy.mark_moving() end

function acapy.remove(uid)
  redis.call('HDEL', keys_key, uid)
  redis.call('HDEL', access_key, uid)
  lists[uid], dirty[uid] = nil, nil
end

function acapy.add_key(uid, key)
  local list = acapy.list(uid)
  if list.places[key] then return end
  list.keys[#list.keys + 1] = key
  list.places[key] = #list.keys
  dirty[uid] = true
end

function acapy.drop_key(uid, key)
  local list = acapy.list(uid)
  local place = list.places[key]
  if not place then return end
  local last = list.keys[#list.keys]
  list.keys[place], list.places[last] = last, place
  list.keys[#list.keys], list.places[key] = nil, nil
  dirty[uid] = true
end

function acapy.size(uid) return #acapy.list(uid).keys end

function acapy.some_keys(uid)
  local found = {}
  for i, key in ipairs(acapy.list(uid).keys) do found[i] = key end
  return found
end

function acapy.ready(uid, key)
  if uid == '' then
    redis.call('ZADD', mail_key, tick, key)
  else
    redis.call('ZREM', mail_key, key)
    woken[uid] = true
  end
end

function acapy.flush()
  for uid in pairs(dirty) do
    local quoted = {}
    for i, key in ipairs(acapy.list(uid).keys) do
      quoted[i] = string.gsub(cjson.encode(key), '\\/', '/')
    end
    redis.call('HSET', keys_key, uid, base64_encode('[' .. table.concat(quoted, ', ') .. ']'))
  end
  dirty = {}
end

local book = ARGV[4] == 'acapy' and acapy or native

-- What every script ends with: lists that changed are written, and who got mail is told.
local function close_book()
  book.flush()
  for uid in pairs(woken) do redis.call('PUBLISH', ARGV[7] .. uid, ARGV[8]) end
  journal_append('routing')
end
