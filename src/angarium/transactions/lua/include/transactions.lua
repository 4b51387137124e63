-- What the transitions of a transaction share. Journal rows, statistics, notices and queue entries
-- are gathered over the batch and written once, by `settle`, so an item pays a few table entries.
--   KEYS  3 to 5 stems of the statistics, fine, medium and coarse: the start of the interval is
--         appended here, because only this script knows the time
--   ARGV  4 notify channel, for ends; every event is told on the same with ':events' behind it
--         5 work channel
-- Ids and names hold no quote, backslash, space or bar (transactions/model.py), so rows are spliced.
local INTERVALS_S, RETENTIONS_S = { 5, 100, 1000 }, { 300, 7200, 86400 }
local FINAL = {
  success = 'completed', failed = 'completed', aborted = 'completed',
  ['internal-error'] = 'completed', cancelled = 'cancelled', timeout = 'expired',
}
local ENDS = { completed = true, cancelled = true, expired = true }
local labels, gauges, pushes, hints = {}, {}, {}, {}
-- By event, and in the order in which the events came.
local noticed, notices = {}, {}
local now_text = string.format('%.0f', now_ms)

-- Many values for one key in few calls; a chunk stays far below what Lua can unpack. The last reply.
local function call_many(command, key, values)
  local reply
  for first = 1, #values, 1000 do
    reply = redis.call(command, key, unpack(values, first, math.min(first + 999, #values)))
  end
  return reply
end

-- The same for a command that takes keys only and answers with a number.
local function count_many(command, names)
  local sum = 0
  for first = 1, #names, 1000 do
    sum = sum + redis.call(command, unpack(names, first, math.min(first + 999, #names)))
  end
  return sum
end

-- The beginning of a text, as JSON for a journal row; not cut in the middle of a letter.
local function brief(text)
  if #text > 200 then text = string.gsub(string.sub(text, 1, 200), '[\192-\255][\128-\191]*$', '') end
  return cjson.encode(text)
end

-- What an event is counted under: «group|pipeline|owner», as a state's field `label` has it.
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

-- One event: a journal row, a count and a notice. `more` is a piece of JSON such as '"a":1'.
local function tell(event, id, about, more)
  about.counts[event] = (about.counts[event] or 0) + 1
  -- Nobody can wait yet for one that has just been given its id.
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

-- Only the finest dimension is written; sums by group, pipeline or owner are the reader's.
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
    -- A field that is new may have brought the whole key.
    if fresh then redis.call('EXPIRE', key, RETENTIONS_S[level]) end
  end
end

-- A line for each event, with all it happened to. Few wait for any but an end, and a message that
-- nobody hears costs nearly nothing: so ends have a channel of their own.
local function notify()
  local ends = {}
  for place, ids in ipairs(notices) do
    local line = table.concat(ids, ' ')
    notices[place] = line
    if ENDS[ids[1]] then ends[#ends + 1] = line end
  end
  redis.call('PUBLISH', ARGV[4] .. ':events', table.concat(notices, '\n'))
  if #ends > 0 then redis.call('PUBLISH', ARGV[4], table.concat(ends, '\n')) end
end

-- Last of all: what the batch gathered is written.
local function settle()
  for queue_key, queue in pairs(pushes) do
    local length = call_many('RPUSH', queue_key, queue.ids)
    -- Only a queue that was empty may have idle nodes in front of it.
    if length == #queue.ids then hints[#hints + 1] = 'work ' .. queue.group end
  end
  statistics_write()
  if #notices > 0 then notify() end
  if #hints > 0 then redis.call('PUBLISH', ARGV[5], table.concat(hints, '\n')) end
  journal_append('transactions')
end
