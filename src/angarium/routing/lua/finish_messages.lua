#!lua
-- Guarantee: only the owner of a key removes messages from its list, only those it names and in their
-- order; the count changes with them. Other messages stay, and the key can be claimed again, unless
-- the instance keeps it.
-- Events: handled, dead; before them accepted, for a message of a published relay
-- Repeats: safe, idempotent by message id
-- include: transition
-- include: session
local acapy, NOTHING = layout_name == 'acapy', {}
local BAND, tick = 2 ^ 39, math.floor(now_ms / 10)
local number = tonumber(string.match(redis.call('HGET', access_key, uid) or '', '^%d+:(%d+)'))
local quoted_uid = cjson.encode(uid)
local emptied, ready = {}, {}

local function id_of(message)
  return not acapy and string.match(message, '^{"id":"([%w_-]*)"') or redis.sha1hex(message)
end

-- Our items have no blank after the first colon; json.dumps in the published relay writes one.
local function is_foreign(message) return acapy and string.sub(message, 1, 12) ~= '{"payload":"' end

local function finish(key, quoted_key, message, id, reason, attempts)
  if is_foreign(message) then note('accepted', id, { k = key, o = uid, d = 'foreign' }) end
  if not reason then
    note_row('{"e":"handled","s":"' .. id .. '","o":' .. quoted_uid .. ',"k":' .. quoted_key .. '}')
  else
    redis.call('RPUSH', dead_key, cjson.encode({ id = id, recip_key = key, reason = reason,
      message = message, attempts = attempts, at_ms = now_ms }))
    note('dead', id, { k = key, o = uid, a = attempts, d = reason })
  end
end

-- Removes the named messages that are at the head of the list. Messages that an earlier, equal call
-- finished are not there. Pops first and puts back the rest, which is rarely needed.
local function remove(key, list, number_of_ids, ids, reasons, attempts)
  local quoted_key, taken = cjson.encode(key), 0
  if number_of_ids == 1 then
    local head = redis.call('LPOP', list)
    if head and id_of(head) == ids then
      finish(key, quoted_key, head, ids, reasons[ids], attempts)
      return 1
    end
    if head then redis.call('LPUSH', list, head) end
    return 0
  end
  local heads = number_of_ids > 0 and redis.call('LPOP', list, number_of_ids) or {}
  for id in string.gmatch(ids, '[^,]+') do
    local head = heads[taken + 1]
    if head and id_of(head) == id then
      finish(key, quoted_key, head, id, reasons[id], attempts)
      taken = taken + 1
    end
  end
  for i = #heads, taken + 1, -1 do redis.call('LPUSH', list, heads[i]) end
  return taken
end

local function settle(key, list, left)
  if acapy then
    emptied[#emptied + 1] = key  -- not in hand any more
    return redis.call('LLEN', list) > 0 and reply.more or reply.finished
  end
  if left == 0 then
    emptied[#emptied + 1] = key
    return reply.finished
  end
  local band = number and 2 * number
    or 2 * math.floor((tonumber(redis.call('ZSCORE', mail_key, key)) or 0) / BAND / 2)
  ready[#ready + 1] = band * BAND + tick
  ready[#ready + 1] = key
  return reply.more
end

-- The attempts at a key's messages. Few were tried before, so the functions are created on use.
local function record_attempts(key, failure, left)
-- include: attempts
  if not failure then return forget_attempts(key, left) end
  -- The message after those that ended failed and is tried again later.
  local record = record_of(key)
  write_record(key, failure.attempts, now_ms + failure.delay_ms, record and record.watched or 0,
    failure.id, failure.reason)
end

local owners, lost = {}, superseded(uid, session)
local some_tried = redis.call('EXISTS', attempts_key) == 1
local wanted = item_column(1)
for start = 1, lost and 0 or item_count, 1000 do
  local last = math.min(item_count, start + 999)
  for _, owner in ipairs(redis.call('HMGET', owners_key, unpack(wanted, start, last))) do
    owners[#owners + 1] = owner
  end
end

local at = 0
local replies = each_item(function(recip_key, number_of_ids, ids, dead, more, list_key)
  at = at + 1
  if owners[at] ~= uid then return reply.not_owner end
  local reasons = dead == '' and NOTHING or cjson.decode(dead)
  local rest = more == '' and NOTHING or cjson.decode(more)
  local attempts = rest.attempts or 0
  local removed = remove(recip_key, list_key, number_of_ids, ids, reasons, math.max(1, attempts))
  local field = uid .. '_' .. recip_key
  local left = redis.call('HINCRBY', counts_key, field, -removed)
  -- If somebody deleted the list, the count would never reach 0.
  if left < 0 or (left > 0 and not acapy and redis.call('EXISTS', list_key) == 0) then
    redis.call('HSET', counts_key, field, 0)
    left = 0
  end
  if rest.failed or (attempts > 0 and removed > 0) or (some_tried and left == 0) then
    record_attempts(recip_key, rest.failed, left)
  end
  if rest.keep then return reply.more end
  return settle(recip_key, list_key, left)
end)
for start = 1, #emptied, 1000 do
  redis.call('ZREM', mail_key, unpack(emptied, start, math.min(start + 999, #emptied)))
end
for start = 1, #ready, 2000 do
  redis.call('ZADD', mail_key, unpack(ready, start, math.min(start + 1999, #ready)))
end
journal_append('routing')
return replies
