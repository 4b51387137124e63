-- Shared by all transitions of a transaction. Journal rows, statistics, notices and queue entries are
-- collected over the batch. `write_batch` writes them once, so an item costs only table entries.
--   KEYS  3 to 5 stems of the statistics, fine, medium and coarse. The start of the interval is
--         appended here, because only this script knows the time
--   ARGV  4 notify channel, for ends; all events go to this name with ':events' appended
--         5 work channel
-- Ids and names have no quote, backslash, space or bar (transactions/model.py checks them), so rows
-- are concatenated without escaping.
local INTERVALS_S, RETENTIONS_S = { 5, 100, 1000 }, { 300, 7200, 86400 }
local FINAL = {
  success = 'completed', failed = 'completed', aborted = 'completed',
  ['internal-error'] = 'completed', cancelled = 'cancelled', timeout = 'expired',
}
local ENDS = { completed = true, cancelled = true, expired = true }
local labels, gauges, pushes, hints = {}, {}, {}, {}
-- Notices by event, and in the order of the events.
local noticed, notices = {}, {}
local now_text = string.format('%.0f', now_ms)

-- Calls a command with many values in chunks that Lua can unpack. Returns the last reply.
local function call_many(command, key, values)
  local reply
  for first = 1, #values, 1000 do
    reply = redis.call(command, key, unpack(values, first, math.min(first + 999, #values)))
  end
  return reply
end

-- Calls a command that takes only keys and replies with a number. Returns the sum.
local function count_many(command, names)
  local sum = 0
  for first = 1, #names, 1000 do
    sum = sum + redis.call(command, unpack(names, first, math.min(first + 999, #names)))
  end
  return sum
end

-- The first 200 bytes of a text as JSON, without a cut character at the end.
local function brief(text)
  if #text > 200 then text = string.gsub(string.sub(text, 1, 200), '[\192-\255][\128-\191]*$', '') end
  return cjson.encode(text)
end

-- The parts and counters of a label, «group|pipeline|owner», as in the field `label` of a state.
local function label(name)
  local found = labels[name]
  if not found then
    local group, pipeline, owner = string.match(name, '^([^|]*)|([^|]*)|([^|]*)$')
    found = {
      name = name, group = group, pipeline = pipeline, owner = owner, counts = {},
      plain = '","k":"' .. group .. '","o":"' .. owner .. '","p":"' .. pipeline .. '"}',
      row = '","k":"' .. group .. '","o":"' .. owner .. '","p":"' .. pipeline .. '",',
    }
    labels[name] = found
  end
  return found
end

-- Records one event: a journal row, a count and a notice. `more` is JSON such as '"a":1'.
local function record_event(event, id, about, more)
  about.counts[event] = (about.counts[event] or 0) + 1
  -- No client can wait for a transaction whose id it does not know yet.
  if event ~= 'started' then
    local ids = noticed[event]
    if not ids then
      ids = { event }
      noticed[event] = ids
      notices[#notices + 1] = ids
    end
    ids[#ids + 1] = id
  end
  if journal_bytes_max == 0 then return end
  journal_count = journal_count + 1
  if more then
    journal_rows[journal_count] = '{"e":"' .. event .. '","s":"' .. id .. about.row .. more .. '}'
  else
    journal_rows[journal_count] = '{"e":"' .. event .. '","s":"' .. id .. about.plain
  end
end

local function push(queue_key, group, id)
  local queue = pushes[queue_key]
  if not queue then
    queue = { group = group, ids = {} }
    pushes[queue_key] = queue
  end
  queue.ids[#queue.ids + 1] = id
end

-- Writes only «group|pipeline|owner|event». The reader computes the sums by group, pipeline or owner.
local function statistics_write()
  for level = 1, 3 do
    local interval_s = INTERVALS_S[level]
    local start_s = math.floor(now_ms / 1000 / interval_s) * interval_s
    local key = KEYS[2 + level] .. string.format('%.0f', start_s)
    local fresh = false
    for name, about in pairs(labels) do
      for event, n in pairs(about.counts) do
        fresh = redis.call('HINCRBY', key, name .. '|' .. event, n) == n or fresh
      end
    end
    for field, length in pairs(gauges) do
      redis.call('HSET', key, field, length)
      fresh = true
    end
    -- A new field may have created the key.
    if fresh then redis.call('EXPIRE', key, RETENTIONS_S[level]) end
  end
end

-- Publishes one line per event: the event and its ids. Most clients wait only for ends, so ends have
-- a channel of their own. A message without a subscriber costs almost nothing.
local function notify()
  local ends = {}
  for index, ids in ipairs(notices) do
    local line = table.concat(ids, ' ')
    notices[index] = line
    if ENDS[ids[1]] then ends[#ends + 1] = line end
  end
  redis.call('PUBLISH', ARGV[4] .. ':events', table.concat(notices, '\n'))
  if #ends > 0 then redis.call('PUBLISH', ARGV[4], table.concat(ends, '\n')) end
end

-- Must be called last: writes what the batch has collected.
local function write_batch()
  for queue_key, queue in pairs(pushes) do
    local length = call_many('RPUSH', queue_key, queue.ids)
    -- Nodes that poll a queue with entries need no hint.
    if length == #queue.ids then hints[#hints + 1] = 'work ' .. queue.group end
  end
  statistics_write()
  if #notices > 0 then notify() end
  if #hints > 0 then redis.call('PUBLISH', ARGV[5], table.concat(hints, '\n')) end
  journal_append('transactions')
end
