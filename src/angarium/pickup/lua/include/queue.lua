-- One queue of the pickup module: its six keys, and the functions that its transitions share.
--   a pending message is in `pending` and in `recipients`
--   a sending message is in `sending`; its score is the time at which it is pending again, or
--     HELD + sequence while the live session that has it lasts
-- A message that is not in `messages` is in the database (archived) or does not exist. A sent
-- archived message is in `sending` too; the field `held` of `meta` counts those. `removed` has the
-- ids of removed messages whose rows are still in the database. The field `cleared` changes whenever
-- rows are deleted, so a script can tell whether the rows that its caller read are outdated.
local call = redis.call -- a local is faster than a lookup with every call
local HELD = 4503599627370496 -- 2^52: later than any time, and the sum with a sequence is exact
local QUEUE_KEYS = 6

local function queue_at(first)
  return {
    meta = KEYS[first], messages = KEYS[first + 1], pending = KEYS[first + 2],
    sending = KEYS[first + 3], recipients = KEYS[first + 4], removed = KEYS[first + 5],
  }
end

local function digits(value) return string.format('%.0f', value) end

local function field(queue, name) return tonumber(call('HGET', queue.meta, name)) or 0 end

-- Sequences follow the clock in µs, so they also grow after Redis lost its data.
local function next_sequence(last) return math.max((tonumber(last) or 0) + 1, now_ms * 1000) end

local function header_of(record)
  local sequence, received_ms, dids = string.match(record, '^(%d+) (%d+) ([^\n]*)\n')
  return tonumber(sequence), tonumber(received_ms), dids
end

-- Adds an event about a message. Ids need no JSON quoting; the name of a queue is quoted once.
local quoted_names = {}
local function note_message(event, id, name, more)
  if journal_bytes_max == 0 then return end
  local quoted = quoted_names[name]
  if not quoted then
    quoted = cjson.encode(name)
    quoted_names[name] = quoted
  end
  note_row('{"e":"' .. event .. '","s":"' .. id .. '","k":' .. quoted .. (more or '') .. '}')
end

-- A deleted queue is created again: rows that a caller read before are outdated.
local function begin_epoch(queue) call('HSET', queue.meta, 'cleared', 'b' .. digits(now_ms)) end

-- Adds a message to the index by recipient or removes it; `command` is ZADD or ZREM.
local function index(queue, command, id, sequence, dids)
  for did in string.gmatch(dids, '%S+') do
    local member = did .. ' ' .. string.format('%017.0f', sequence) .. ' ' .. id
    if command == 'ZADD' then
      call('ZADD', queue.recipients, 0, member)
    else
      call('ZREM', queue.recipients, member)
    end
  end
end

-- Deletes a queue without messages and without a session, unless a gateway does not know yet that
-- its session ended.
local function delete_if_unused(queue)
  local left = call('HMGET', queue.meta, 'stored', 'archived', 'moving', 'session', 'ended')
  if not left[4] and not left[5] and (tonumber(left[1]) or 0) == 0 and (tonumber(left[2]) or 0) == 0
    and (tonumber(left[3]) or 0) == 0 then
    call('DEL', queue.meta)
  end
end

-- Sent messages are pending again at `due_ms`, or at their own time if that is earlier. Until then,
-- or until they are removed, the next session gets nothing newer.
local function begin_grace(queue, due_key, name, due_ms)
  local later = call('ZRANGEBYSCORE', queue.sending, '(' .. digits(due_ms), '+inf')
  for _, id in ipairs(later) do call('ZADD', queue.sending, due_ms, id) end
  if #later > 0 then
    call('ZADD', due_key, 'LT', due_ms, name)
    call('HSET', queue.meta, 'grace', due_ms)
  end
end

-- Whether a message of an earlier session is still neither removed nor pending again.
local function in_grace(queue, grace)
  if not grace then return false end
  if call('ZCOUNT', queue.sending, '-inf', grace) > 0 then return true end
  call('HDEL', queue.meta, 'grace')
  return false
end

-- Makes a sent message pending again, in its old position; returns 1 if the database has it.
local function make_pending(queue, name, id)
  call('ZREM', queue.sending, id)
  note_message('returned', id, name)
  local record = call('HGET', queue.messages, id)
  if not record then return 1 end
  local sequence, _, dids = header_of(record)
  call('ZADD', queue.pending, sequence, id)
  index(queue, 'ZADD', id, sequence, dids)
  return 0
end

-- Makes sent messages with a score in the range pending again; returns how many there were.
local function release(queue, name, from, to, count_max)
  local ids = call('ZRANGEBYSCORE', queue.sending, from, to, 'LIMIT', 0, count_max)
  local archived = 0
  for _, id in ipairs(ids) do archived = archived + make_pending(queue, name, id) end
  if archived > 0 then call('HINCRBY', queue.meta, 'held', -archived) end
  return #ids
end

-- `push` is a hashed token, a space and the notification. A token has one scheduled notification:
-- the newest replaces the earlier one.
local function schedule_push(due_key, pushes_key, push, id)
  local token, body = string.match(push, '^(%S+) (.*)$')
  call('HSET', pushes_key, token, '0 ' .. body)
  if call('ZADD', due_key, 'NX', digits(now_ms), token) == 1 then note('push_scheduled', id) end
end

-- Whether the gateway's lease is valid. `known` caches the result for the batch.
local function alive(gateways_key, gateway, known)
  if known[gateway] == nil then
    local until_ms = tonumber(call('ZSCORE', gateways_key, gateway))
    known[gateway] = until_ms ~= nil and until_ms >= now_ms
  end
  return known[gateway]
end
