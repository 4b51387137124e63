#!lua
-- Guarantee: up to `count` queued transactions become this node's, administrative ones first, then
-- those that go on, then new ones; each is running, in processingZ, under a run number of its own.
-- One whose next step this node lacks leaves the queue and waits for a node that has the step.
-- KEYS: 3 to 5 statistics, 6 stem of states, 7 processing, 8 nodes, 9 stem of pipelines, 10 stem of
-- qWait; per group: qAdmin, qOut, qIn
-- ARGV: 4 notify, 5 work, 6 node, 7 count, 8 the node's step types « a b », 9 some pipelines that it
-- has all steps of « name|version », 10 'all' | 'queues': whether to look for those that wait too,
-- 11 number of groups; per group: name
-- Returns: per entry {'taken', id, run, place, label, version, data, left_ms, and if it has any:
-- externalId, frame, cancel, switches, metadata, 'w' it has a webhook and 'p' a parent, child
-- results…} | {'no_state', id} | {'not_queued', id} | {'waits', id, step type}; `place` is its score
-- in processingZ, which no other run has
-- Events: taken, dropped, step_awaited (module transactions)
-- Repeats: no, a second call takes more; what a lost reply took comes back by recover_orphans
-- include: transition
-- include: transactions
local node, left, types, whole = ARGV[6], tonumber(ARGV[7]), ARGV[8], ARGV[9]
local groups = tonumber(ARGV[11])
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

-- The functions for step types are made when the first entry needs them: making a function costs
-- more than calling it, and a node that has its pipelines whole needs none.
local take, steps
local function step_functions()
-- include: waiting
  wait_stem = KEYS[10]
  -- A step that is a pipeline needs no type.
  local able, pipelines = { ['*'] = true }, {}

  local function has(step_type)
    if able[step_type] == nil then
      able[step_type] = string.find(types, ' ' .. step_type .. ' ', 1, true) ~= nil
    end
    return able[step_type]
  end

  -- A definition that 0.1.0 stored has no list of its step types: it is written on first use. Without
  -- a definition, or with one that can't be read, the list is empty, and the node that takes the
  -- transaction says what is wrong.
  local function read_definition(hash, version)
    local definition = redis.call('HGET', hash, 'definition:' .. version)
    if not definition then return '' end
    local read, text = pcall(function()
      local words = {}
      for number, step in ipairs(cjson.decode(definition).steps) do
        words[number] = step.type or '*'
      end
      return table.concat(words, ' ')
    end)
    text = read and text or ''
    redis.call('HSET', hash, 'steps:' .. version, text)
    return text
  end

  local function steps_of(pipeline, version)
    local name = pipeline .. '|' .. version
    if not pipelines[name] then
      local hash, words = KEYS[9] .. pipeline, {}
      local text = redis.call('HGET', hash, 'steps:' .. version) or read_definition(hash, version)
      for word in string.gmatch(text, '%S+') do words[#words + 1] = word end
      pipelines[name] = words
    end
    return pipelines[name]
  end

  -- The step type that this node lacks for it, or nil. One that is to be cancelled or whose time is
  -- over needs no step: any node ends it.
  local function lacking(state, about, found)
    local step = found[7] and tonumber(redis.call('HGET', state, 'step') or 0) or 0
    local need = steps_of(about.pipeline, found[4])[step + 1]
    if not need or has(need) or tonumber(found[6]) <= now_ms then return nil end
    if found[7] and redis.call('HEXISTS', state, 'cancel') == 1 then return nil end
    return need
  end

  local served = {}
  for index = 1, groups do served[ARGV[11 + index]] = true end

  -- What waits for one of our step types is older than what is in the queue.
  local function take_waiting(places, wanted)
    for _, place in ipairs(places) do
      local queue, group, step_type = string.match(place, '^([^|]*)|([^|]*)|(.*)$')
      if left > 0 and queue == wanted and served[group] and has(step_type) then
        local popped = redis.call('ZPOPMIN', wait_stem .. place, left)
        local ids = {}
        for at = 1, #popped, 2 do ids[#ids + 1] = popped[at] end
        left = left - #ids
        if #ids > 0 then call_many('ZREM', wait_stem .. 'deadlines', ids) end
        forget_place_if_empty(place)
        for _, id in ipairs(ids) do replies[#replies + 1] = take(id, group) end
      end
    end
  end

  steps = { lacking = lacking, wait_for = wait_for, take_waiting = take_waiting }
end

-- `queue` is where it was, or nil if it waited for a node like this one.
function take(id, group, queue)
  local state = KEYS[6] .. id
  local found = redis.call('HMGET', state, 'status', 'run', 'label', 'version', 'data', 'deadline',
    'more')
  if not found[1] then
    tell('dropped', id, label(group .. '|-|-'), '"d":"no_state"')
    return { 'no_state', id }
  end
  -- Ended while it waited here (cancelled), or queued twice: nothing to do, nothing lost.
  if found[1] ~= 'queued' then return { 'not_queued', id } end
  local about, version = label(found[3]), found[4]
  if not queue then
    redis.call('HDEL', state, 'waits')
  else
    if about[version] == nil then
      local name = ' ' .. about.pipeline .. '|' .. version .. ' '
      about[version] = string.find(whole, name, 1, true) ~= nil
      if not about[version] and not steps then step_functions() end
    end
    local need = not about[version] and steps.lacking(state, about, found)
    if need then
      steps.wait_for(state, id, queue, about, need, found[6])
      return { 'waits', id, need }
    end
  end
  local run = run_of((tonumber(found[2]) or 0) + 1)
  redis.call('HSET', state, 'status', 'running', 'run', run.text, 'node', node, 'taken', now_text)
  processing[#processing + 1] = run.place
  processing[#processing + 1] = id
  tell('taken', id, about, run.more)
  local reply = {
    'taken', id, run.text, run.place, found[3], version, found[5], tonumber(found[6]) - now_ms,
  }
  if found[7] then add_rare(reply, state) end
  return reply
end

local places = ARGV[10] == 'all' and redis.call('ZRANGE', KEYS[10] .. 'places', 0, -1) or {}
if #places > 0 then step_functions() end
redis.call('ZADD', KEYS[8], now_text, node)
for place, queue in ipairs({ 'admin', 'out', 'in' }) do
  if #places > 0 then steps.take_waiting(places, queue) end
  for index = 1, groups do
    local queue_key, group = KEYS[7 + 3 * index + place], ARGV[11 + index]
    if left > 0 then
      local ids = redis.call('LPOP', queue_key, left)
      if ids then
        left = left - #ids
        for _, id in ipairs(ids) do replies[#replies + 1] = take(id, group, queue) end
      end
    end
  end
end
if #processing > 0 then call_many('ZADD', KEYS[7], processing) end
settle()
return replies
