-- One queue of the pickup module: six keys beside one another, and what all its transitions share.
--   a message is  pending  in `pending` and in `recipients`
--                 sending  in `sending`, scored by when it is pending again; HELD + sequence
--                          while the live session it went to lasts
-- Whatever is in neither and not in `messages` is in the database (archived) or does not exist;
-- an archived message that was sent is in `sending` too, and counted in `held`.
local call = redis.call -- found once, not with every call
local HELD = 4503599627370496 -- 2^52: beyond any time, and its sum with a sequence is exact
local QUEUE_KEYS = 6

local function queue_at(first)
  return {
    meta = KEYS[first], messages = KEYS[first + 1], pending = KEYS[first + 2],
    sending = KEYS[first + 3], recipients = KEYS[first + 4], buried = KEYS[first + 5],
  }
end

local function digits(value) return string.format('%.0f', value) end

local function field(queue, name) return tonumber(call('HGET', queue.meta, name)) or 0 end

-- Sequences follow the clock in µs, so that they still grow if Redis came back empty.
local function next_sequence(last) return math.max((tonumber(last) or 0) + 1, now_ms * 1000) end

local function header_of(record)
  local sequence, received_ms, dids = string.match(record, '^(%d+) (%d+) ([^\n]*)\n')
  return tonumber(sequence), tonumber(received_ms), dids
end

-- An event about a message: its id is ours and needs no quoting, its queue's name is quoted once.
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

-- Whoever saw rows of an earlier life of the queue must not take them for rows of this one.
local function begin_life(queue) call('HSET', queue.meta, 'cleared', 'b' .. digits(now_ms)) end

-- `command` is ZADD or ZREM.
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

-- A queue without messages and without a session leaves nothing behind, unless a gateway has yet
-- to learn that its session ended.
local function tidy(queue)
  local left = call('HMGET', queue.meta, 'stored', 'archived', 'moving', 'session', 'ended')
  if not left[4] and not left[5] and (tonumber(left[1]) or 0) == 0 and (tonumber(left[2]) or 0) == 0
    and (tonumber(left[3]) or 0) == 0 then
    call('DEL', queue.meta)
  end
end

-- What was sent is pending again at `due_ms`, or when it would have been, if that is sooner. Until
-- then, or until it is removed, the next session gets nothing that is newer.
local function begin_grace(queue, due_key, name, due_ms)
  local later = call('ZRANGEBYSCORE', queue.sending, '(' .. digits(due_ms), '+inf')
  for _, id in ipairs(later) do call('ZADD', queue.sending, due_ms, id) end
  if #later > 0 then
    call('ZADD', due_key, 'LT', due_ms, name)
    call('HSET', queue.meta, 'grace', due_ms)
  end
end

-- Whether something that an earlier session was sent is still neither removed nor pending again.
local function in_grace(queue, grace)
  if not grace then return false end
  if call('ZCOUNT', queue.sending, '-inf', grace) > 0 then return true end
  call('HDEL', queue.meta, 'grace')
  return false
end

-- A sent message is pending again, in its old place; returns 1 if the database has it.
local function put_back(queue, name, id)
  call('ZREM', queue.sending, id)
  note_message('returned', id, name)
  local record = call('HGET', queue.messages, id)
  if not record then return 1 end
  local sequence, _, dids = header_of(record)
  call('ZADD', queue.pending, sequence, id)
  index(queue, 'ZADD', id, sequence, dids)
  return 0
end

-- Sent messages with a score in between are pending again; returns how many those were.
local function release(queue, name, from, to, count_max)
  local ids = call('ZRANGEBYSCORE', queue.sending, from, to, 'LIMIT', 0, count_max)
  local archived = 0
  for _, id in ipairs(ids) do archived = archived + put_back(queue, name, id) end
  if archived > 0 then call('HINCRBY', queue.meta, 'held', -archived) end
  return #ids
end

-- `push` is a hashed token and its note: one at a time for each token, and that the newest.
local function schedule_push(due_key, notes_key, push, id)
  local token, body = string.match(push, '^(%S+) (.*)$')
  call('HSET', notes_key, token, '0 ' .. body)
  if call('ZADD', due_key, 'NX', digits(now_ms), token) == 1 then note('push_scheduled', id) end
end

-- Whether the gateway's sessions count as live. `known` remembers it for the batch.
local function alive(gateways_key, gateway, known)
  if known[gateway] == nil then
    local until_ms = tonumber(call('ZSCORE', gateways_key, gateway))
    known[gateway] = until_ms ~= nil and until_ms >= now_ms
  end
  return known[gateway]
end
