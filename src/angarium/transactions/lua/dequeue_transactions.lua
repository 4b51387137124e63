#!lua
-- Guarantee: the node takes up to `count` queued transactions: administrative ones first, then those
-- that continue, then new ones. Each is running, in processingZ, with a new run number. A transaction
-- whose next step the node lacks leaves the queue and waits for a node that has the step.
-- KEYS: 3 to 5 statistics, 6 stem of states, 7 processing, 8 nodes, 9 stem of pipelines, 10 stem of
-- qWait; per group: qAdmin, qOut, qIn
-- ARGV: 4 notify, 5 work, 6 node, 7 count, 8 the node's step types « a b », 9 some pipelines of which
-- the node has all steps « name|version », 10 'all' also takes waiting transactions | 'queues' does
-- not, 11 number of groups; per group: name
-- Returns: per entry {'taken', id, run, score, label, version, data, remaining_ms, and only if the
-- state has rare fields: externalId, checkpoint, cancel, switches, metadata, flags ('w' webhook, 'p'
-- parent), child results…} | {'no_state', id} | {'not_queued', id} | {'waits', id, step type};
-- `score` is the score in processingZ, which no other run has
-- Events: taken, dropped, step_awaited (module transactions)
-- Repeats: no, a second call takes more; recover_orphans requeues what a lost reply took
-- include: transition
-- include: transactions
local node, left, types, whole = ARGV[6], tonumber(ARGV[7]), ARGV[8], ARGV[9]
local groups = tonumber(ARGV[11])
-- Few states have these fields. The field `more` says that a state may have some.
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
  for index = 1, 5 do reply[#reply + 1] = rare[index] or '' end
  reply[#reply + 1] = (rare[8] and 'w' or '') .. (rare[9] and 'p' or '')
  if rare[7] then redis.call('HDEL', state, 'unseen') end
  if rare[6] then
    for _, result in ipairs(children_of(state, rare[6])) do reply[#reply + 1] = result end
  end
end

-- The texts that all transactions with the same run number share: most are in their first run.
local function run_of(number)
  local run = runs[number]
  if not run then
    local text = string.format('%.0f', number)
    run = {
      text = text, more = '"n":"' .. node .. '","a":' .. text,
      -- The time of the dequeue. The fraction distinguishes two runs in the same millisecond.
      score = string.format('%.10f', now_ms + number % 1024 / 1024),
    }
    runs[number] = run
  end
  return run
end

-- The functions for step types are created when the first entry needs them. Creating a function
-- costs more than calling it, and a node that has all steps of its pipelines needs none.
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

  -- A definition that 0.1.0 stored has no list of step types. This writes the list on first use. If
  -- the definition is missing or not valid, the list is empty, and the node that takes the
  -- transaction reports the problem.
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

  -- The step type that this node lacks, or nil. Any node can end a transaction that must be cancelled
  -- or is past its deadline.
  local function lacking(state, about, found)
    local step = found[7] and tonumber(redis.call('HGET', state, 'step') or 0) or 0
    local need = steps_of(about.pipeline, found[4])[step + 1]
    if not need or has(need) or tonumber(found[6]) <= now_ms then return nil end
    if found[7] and redis.call('HEXISTS', state, 'cancel') == 1 then return nil end
    return need
  end

  local served = {}
  for index = 1, groups do served[ARGV[11 + index]] = true end

  -- Waiting transactions are older than those in the queue.
  local function take_waiting(lists, wanted)
    for _, list in ipairs(lists) do
      local queue, group, step_type = string.match(list, '^([^|]*)|([^|]*)|(.*)$')
      if left > 0 and queue == wanted and served[group] and has(step_type) then
        local popped = redis.call('ZPOPMIN', wait_stem .. list, left)
        local ids = {}
        for at = 1, #popped, 2 do ids[#ids + 1] = popped[at] end
        left = left - #ids
        if #ids > 0 then call_many('ZREM', wait_stem .. 'deadlines', ids) end
        remove_list_if_empty(list)
        for _, id in ipairs(ids) do replies[#replies + 1] = take(id, group) end
      end
    end
  end

  steps = { lacking = lacking, wait_for = wait_for, take_waiting = take_waiting }
end

-- `queue` is the queue of the entry, or nil if the transaction waited for its step type.
function take(id, group, queue)
  local state = KEYS[6] .. id
  local found = redis.call('HMGET', state, 'status', 'run', 'label', 'version', 'data', 'deadline',
    'more')
  if not found[1] then
    record_event('dropped', id, label(group .. '|-|-'), '"d":"no_state"')
    return { 'no_state', id }
  end
  -- It was cancelled while it was queued, or it was queued twice. Nothing is lost.
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
  processing[#processing + 1] = run.score
  processing[#processing + 1] = id
  record_event('taken', id, about, run.more)
  local reply = {
    'taken', id, run.text, run.score, found[3], version, found[5], tonumber(found[6]) - now_ms,
  }
  if found[7] then add_rare(reply, state) end
  return reply
end

local lists = ARGV[10] == 'all' and redis.call('ZRANGE', KEYS[10] .. 'places', 0, -1) or {}
if #lists > 0 then step_functions() end
redis.call('ZADD', KEYS[8], now_text, node)
for rank, queue in ipairs({ 'admin', 'out', 'in' }) do
  if #lists > 0 then steps.take_waiting(lists, queue) end
  for index = 1, groups do
    local queue_key, group = KEYS[7 + 3 * index + rank], ARGV[11 + index]
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
write_batch()
return replies
