-- Shared by all transitions of a transaction. Journal rows, statistics, notices and queue entries are
-- collected over the batch. `write_batch` writes them once, so an item costs only table entries.
--   stats_fine_stem, stats_medium_stem, stats_coarse_stem  the start of the interval is appended here,
--                  because only this script knows the time
--   fair_stem, turns_stem  queues whose owners take turns, and the last place of each owner
--   notify_channel for ends, events_channel for all events, work_channel for hints to nodes
-- Ids and names have no quote, backslash, space or bar (transactions/model.py checks them), so rows
-- are concatenated without escaping.
local INTERVALS_S, RETENTIONS_S = { 5, 100, 1000 }, { 300, 7200, 86400 }
local FINAL = {
  success = 'completed', failed = 'completed', aborted = 'completed',
  ['internal-error'] = 'completed', cancelled = 'cancelled', timeout = 'expired',
}
local ENDS = { completed = true, cancelled = true, expired = true, dead = true }
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

-- The failed tries of the current step and the crashes of nodes that ran it, from the field `faults`.
local function read_faults(text)
  local tries, crashes = string.match(text or '', '^(%d+) (%d+)$')
  return tonumber(tries) or 0, tonumber(crashes) or 0
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

-- Whether the owners of a queue take turns. Nodes with the setting renew this key.
local turns_on
local function owners_take_turns()
  if turns_on == nil then turns_on = redis.call('EXISTS', turns_stem .. 'on') == 1 end
  return turns_on
end

-- The score of an owner's next transaction in a queue whose owners take turns: one behind the last of
-- this owner, and not before the head. So the first of an owner stands beside the head, however many
-- of others wait.
local heads, places = {}, {}
local function place_in_turn(key, queue, owner)
  local turns, last = turns_stem .. queue, places[queue]
  if not last then
    local head = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
    if not head then redis.call('DEL', turns) end
    heads[queue], last = tonumber(head) or 0, {}
    places[queue] = last
  end
  local before = last[owner] or tonumber(redis.call('HGET', turns, owner) or nil)
  last[owner] = math.max(heads[queue], before and before + 1 or heads[queue])
  return string.format('%.10f', last[owner])
end

-- Queues a transaction behind the others: of all owners, or of its own if owners take turns.
local function push(stem, queue, about, id)
  local key = stem .. about.group
  local found = pushes[key]
  if not found then
    found = { group = about.group, ids = {} }
    if queue ~= 'admin' and owners_take_turns() then found.turns = queue .. '|' .. about.group end
    pushes[key] = found
  end
  local ids = found.ids
  if found.turns then
    ids[#ids + 1] = place_in_turn(fair_stem .. found.turns, found.turns, about.owner)
  end
  ids[#ids + 1] = id
end

-- Queues a transaction before the others.
local function push_front(stem, queue, about, id)
  if queue ~= 'admin' and owners_take_turns() then
    local key = fair_stem .. queue .. '|' .. about.group
    local head = tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2] or 0)
    redis.call('ZADD', key, string.format('%.10f', head - 1), id)
  else
    redis.call('LPUSH', stem .. about.group, id)
  end
  hints[#hints + 1] = 'work ' .. about.group
end

local function write_pushes()
  for queue_key, queue in pairs(pushes) do
    local is_first
    if queue.turns then
      call_many('ZADD', fair_stem .. queue.turns, queue.ids)
      is_first = redis.call('ZCARD', fair_stem .. queue.turns) * 2 == #queue.ids
    else
      is_first = call_many('RPUSH', queue_key, queue.ids) == #queue.ids
    end
    -- Nodes that poll a queue with entries need no hint.
    if is_first then hints[#hints + 1] = 'work ' .. queue.group end
  end
  for queue, last in pairs(places) do
    for owner, place in pairs(last) do
      redis.call('HSET', turns_stem .. queue, owner, string.format('%.10f', place))
    end
  end
end

-- Writes only «group|pipeline|owner|event». The reader computes the sums by group, pipeline or owner.
local function statistics_write()
  for level, stem in ipairs({ stats_fine_stem, stats_medium_stem, stats_coarse_stem }) do
    local interval_s = INTERVALS_S[level]
    local start_s = math.floor(now_ms / 1000 / interval_s) * interval_s
    local key = stem .. string.format('%.0f', start_s)
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

-- Publishes one line per event: the event and its ids. Most clients wait only for ends and progress,
-- so these have a channel of their own. A message without a subscriber costs almost nothing.
local function notify()
  local ends = {}
  for index, ids in ipairs(notices) do
    local line = table.concat(ids, ' ')
    notices[index] = line
    if ENDS[ids[1]] or ids[1] == 'progressed' then ends[#ends + 1] = line end
  end
  redis.call('PUBLISH', events_channel, table.concat(notices, '\n'))
  if #ends > 0 then redis.call('PUBLISH', notify_channel, table.concat(ends, '\n')) end
end

-- Must be called last: writes what the batch has collected.
local function write_batch()
  write_pushes()
  statistics_write()
  if #notices > 0 then notify() end
  if #hints > 0 then redis.call('PUBLISH', work_channel, table.concat(hints, '\n')) end
  journal_append('transactions')
end
