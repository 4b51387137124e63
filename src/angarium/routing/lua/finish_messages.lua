#!lua
-- Guarantee: only the owner of a key removes messages from its list, only those it names and in their
-- order; the count changes with them. Other messages stay, and the key can be claimed again.
-- KEYS: 3 counts, 4 dead letters, 5 owners, 6 last access, 7 mail; per item: list
-- ARGV: 4 layout, 5 uid, 6 number of items; per item: key, n, then n times message id and the reason
-- of its dead letter, or '' for a handled message
-- Returns: per item 'finished' | 'more' (messages are left) | 'not_owner'
-- Events: handled, dead; before them accepted, for a message of a published relay
-- Repeats: safe, idempotent by message id
-- include: transition
local acapy, uid = ARGV[4] == 'acapy', ARGV[5]
local BAND, tick = 2 ^ 39, math.floor(now_ms / 10)
local number = tonumber(string.match(redis.call('HGET', KEYS[6], uid) or '', '^%d+:(%d+)'))
local quoted_uid = cjson.encode(uid)
local emptied, ready = {}, {}

local function id_of(message)
  return not acapy and string.match(message, '^{"id":"([%w_-]*)"') or redis.sha1hex(message)
end

-- Our items have no blank after the first colon; json.dumps in the published relay writes one.
local function is_foreign(message) return acapy and string.sub(message, 1, 12) ~= '{"payload":"' end

local function finish(key, quoted_key, message, id, reason)
  if is_foreign(message) then note('accepted', id, { k = key, o = uid, d = 'foreign' }) end
  if reason == '' then
    note_row('{"e":"handled","s":"' .. id .. '","o":' .. quoted_uid .. ',"k":' .. quoted_key .. '}')
  else
    redis.call('RPUSH', KEYS[4], cjson.encode({ id = id, recip_key = key, reason = reason,
      message = message, at_ms = now_ms }))
    note('dead', id, { k = key, o = uid, d = reason })
  end
end

-- Removes the named messages that are at the head of the list. Messages that an earlier, equal call
-- finished are not there. Pops first and puts back the rest, which is rarely needed.
local function remove(key, list, n, place)
  local heads = n > 0 and redis.call('LPOP', list, n) or {}
  local quoted_key, taken = cjson.encode(key), 0
  for i = 1, n do
    local id, head = ARGV[place + 2 * i], heads[taken + 1]
    if head and id_of(head) == id then
      finish(key, quoted_key, head, id, ARGV[place + 2 * i + 1])
      taken = taken + 1
    end
  end
  for i = #heads, taken + 1, -1 do redis.call('LPUSH', list, heads[i]) end
  return taken
end

local function settle(key, list, left)
  if acapy then return redis.call('LLEN', list) > 0 and 'more' or 'finished' end
  if left == 0 then
    emptied[#emptied + 1] = key
    return 'finished'
  end
  local band = number and 2 * number
    or 2 * math.floor((tonumber(redis.call('ZSCORE', KEYS[7], key)) or 0) / BAND / 2)
  ready[#ready + 1] = band * BAND + tick
  ready[#ready + 1] = key
  return 'more'
end

local items, places, wanted, place = tonumber(ARGV[6]), {}, {}, 7
for item = 1, items do
  places[item], wanted[item] = place, ARGV[place]
  place = place + 2 + 2 * tonumber(ARGV[place + 1])
end
local owners = {}
for start = 1, items, 1000 do
  local last = math.min(items, start + 999)
  for _, owner in ipairs(redis.call('HMGET', KEYS[5], unpack(wanted, start, last))) do
    owners[#owners + 1] = owner
  end
end

local replies = {}
for item = 1, items do
  place = places[item]
  local key, n, list = ARGV[place], tonumber(ARGV[place + 1]), KEYS[7 + item]
  if owners[item] ~= uid then
    replies[item] = 'not_owner'
  else
    local removed, field = remove(key, list, n, place), uid .. '_' .. key
    local left = redis.call('HINCRBY', KEYS[3], field, -removed)
    -- If somebody deleted the list, the count would never reach 0.
    if left < 0 or (left > 0 and not acapy and redis.call('EXISTS', list) == 0) then
      redis.call('HSET', KEYS[3], field, 0)
      left = 0
    end
    replies[item] = settle(key, list, left)
  end
end
for start = 1, #emptied, 1000 do
  redis.call('ZREM', KEYS[7], unpack(emptied, start, math.min(start + 999, #emptied)))
end
for start = 1, #ready, 2000 do
  redis.call('ZADD', KEYS[7], unpack(ready, start, math.min(start + 1999, #ready)))
end
journal_append('routing')
return replies
