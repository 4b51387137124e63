#!lua
-- Guarantee: up to `count` queued transactions become this node's, administrative ones first, then
-- those that go on, then new ones; each is running, in processingZ, under a run number of its own.
-- KEYS: 3 to 5 statistics, 6 stem of states, 7 processing, 8 nodes; per group: qAdmin, qOut, qIn
-- ARGV: 4 notify, 5 work, 6 node, 7 count, 8 number of groups; per group: name
-- Returns: per entry {'taken', id, run, place, label, version, data, left_ms, and if it has any:
-- externalId, frame, cancel, switches, metadata, 'w' it has a webhook and 'p' a parent, child
-- results…} | {'no_state', id} | {'not_queued', id}; `place` is its score in processingZ, which no
-- other run has
-- Events: taken, dropped (room transactions)
-- Repeats: no, a second call takes more; what a lost reply took comes back by recover_orphans
-- include: transition
-- include: transactions
local node, left, groups = ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8])
-- Most have none of these; `more` says that a state may have some.
local RARE = {
  'externalId', 'frame', 'cancel', 'switches', 'metadata', 'children', 'unseen', 'webhook', 'parent',
}
local replies, processing, runs = {}, {}, {}

local function children_of(state, count)
  local names = {}
  for number = 1, tonumber(count) do names[number] = 'child:' .. number end
  local results = {}
  for first = 1, #names, 1000 do
    local part = redis.call('HMGET', state, unpack(names, first, math.min(first + 999, #names)))
    for _, result in ipairs(part) do results[#results + 1] = result or '' end
  end
  return results
end

local function add_rare(reply, state)
  local rare = redis.call('HMGET', state, unpack(RARE))
  for place = 1, 5 do reply[#reply + 1] = rare[place] or '' end
  reply[#reply + 1] = (rare[8] and 'w' or '') .. (rare[9] and 'p' or '')
  if rare[7] then redis.call('HDEL', state, 'unseen') end
  if rare[6] then
    for _, result in ipairs(children_of(state, rare[6])) do reply[#reply + 1] = result end
  end
end

-- A run number as all of this batch that have it write it: most are in their first.
local function run_of(number)
  local run = runs[number]
  if not run then
    local text = string.format('%.0f', number)
    run = {
      text = text, more = '"n":"' .. node .. '","a":' .. text,
      -- The time it was taken; the fraction tells two runs of the same millisecond apart.
      place = string.format('%.10f', now_ms + number % 1024 / 1024),
    }
    runs[number] = run
  end
  return run
end

local function take(id, group)
  local state = KEYS[6] .. id
  local found = redis.call('HMGET', state, 'status', 'run', 'label', 'version', 'data', 'deadline',
    'more')
  if not found[1] then
    tell('dropped', id, label(group .. '|-|-'), '"d":"no_state"')
    return { 'no_state', id }
  end
  -- Ended while it waited here (cancelled), or queued twice: nothing to do, nothing lost.
  if found[1] ~= 'queued' then return { 'not_queued', id } end
  local run = run_of((tonumber(found[2]) or 0) + 1)
  redis.call('HSET', state, 'status', 'running', 'run', run.text, 'node', node, 'taken', now_text)
  processing[#processing + 1] = run.place
  processing[#processing + 1] = id
  tell('taken', id, label(found[3]), run.more)
  local reply = {
    'taken', id, run.text, run.place, found[3], found[4], found[5], tonumber(found[6]) - now_ms,
  }
  if found[7] then add_rare(reply, state) end
  return reply
end

redis.call('ZADD', KEYS[8], now_text, node)
for place = 1, 3 do -- admin, out, in
  for index = 1, groups do
    local queue_key, group = KEYS[5 + 3 * index + place], ARGV[8 + index]
    if left > 0 then
      local ids = redis.call('LPOP', queue_key, left)
      if ids then
        left = left - #ids
        for _, id in ipairs(ids) do replies[#replies + 1] = take(id, group) end
      end
    end
  end
end
if #processing > 0 then call_many('ZADD', KEYS[7], processing) end
settle()
return replies
