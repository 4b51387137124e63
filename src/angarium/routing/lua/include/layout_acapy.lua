-- The functions of layout `acapy`; they replace those of `native` when ARGV 4 says so.
--   KEYS 5 is a hash, uid -> base64url of a JSON list; 7 holds dates in seconds; 8 has only keys
--   without an owner.
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

-- Converts a date of the Gregorian calendar to days since 1970, and back.
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

-- A damaged list counts as empty: it must not stop the other instances.
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

function acapy.uids()
  uids_known = uids_known or redis.call('HKEYS', keys_key)
  return uids_known
end
function acapy.number(uid) return uid == '' and 0 or nil end
function acapy.moving() return false end

-- nil without a date: an instance without a heartbeat is not silent.
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

-- A published instance sends a heartbeat only when it handles a message, so an idle one is live.
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
  lists[uid], dirty[uid], uids_known = nil, nil, nil
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
    newly_ready[#newly_ready + 1] = tick
    newly_ready[#newly_ready + 1] = key
  else
    write_ready()
    redis.call('ZREM', mail_key, key)
    woken[uid] = true
  end
end

-- A character outside ASCII as json.dumps writes it.
local function escaped(character)
  local code = string.byte(character)
  code = code - (code >= 240 and 240 or code >= 224 and 224 or 192)
  for i = 2, #character do code = code * 64 + string.byte(character, i) - 128 end
  if code < 65536 then return string.format('\\u%04x', code) end
  code = code - 65536
  return string.format('\\u%04x\\u%04x', 55296 + math.floor(code / 1024), 56320 + code % 1024)
end

function acapy.flush()
  for uid in pairs(dirty) do
    local quoted = {}
    for i, key in ipairs(acapy.list(uid).keys) do
      local text = string.gsub(cjson.encode(key), '\\/', '/')
      quoted[i] = string.gsub(text, '[\192-\255][\128-\191]*', escaped)
    end
    redis.call('HSET', keys_key, uid, base64_encode('[' .. table.concat(quoted, ', ') .. ']'))
  end
  dirty = {}
end

if ARGV[4] == 'acapy' then layout = acapy end
