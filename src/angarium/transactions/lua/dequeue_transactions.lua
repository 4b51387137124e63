#!lua
-- Guarantee: the node takes up to `count` queued transactions: administrative ones first, then those
-- that continue, then new ones. Each node group gets its share of `limit`; what one leaves, others get.
-- Each is running, in processingZ, with a new run number. A transaction whose next step the node lacks
-- leaves the queue and waits for a node that has the step.
-- Events: taken, dropped, step_awaited (module transactions)
-- Repeats: no, a second call takes more; recover_orphans requeues what a lost reply took
-- include: transition
-- include: transactions
-- One reply has about this size, so that large data does not fill the memory of Redis and the node.
local REPLY_BYTES_MAX = 16 * 1024 * 1024
-- A transaction whose nodes crashed this often runs beside no other such one: the one that crashes
-- nodes ends by its own count, and the others do not.
local SUSPECT_CRASHES = 2
local left, threads_left, alone_left, bytes, groups = limit, threads, alone and 1 or 0, 0, {}
each_item(function(node_group, admin_key, out_key, in_key)
  groups[#groups + 1] = { name = node_group, admin = admin_key, out = out_key, ['in'] = in_key }
end)
-- Few states have these fields. The field `more` says that a state may have some.
local RARE = {
  'externalId', 'frame', 'cancel', 'switches', 'metadata', 'children', 'unseen', 'webhook', 'parent',
}
local taken, refused, waits, processing, runs = {}, 0, 0, {}, {}
local taken_more = false

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

local function add_rare(row, state, faults)
  local rare = redis.call('HMGET', state, unpack(RARE))
  for index = 1, 5 do row[#row + 1] = rare[index] or '' end
  row[#row + 1] = faults or ''
  row[#row + 1] = (rare[8] and 'w' or '') .. (rare[9] and 'p' or '')
  if rare[7] then redis.call('HDEL', state, 'unseen') end
  if rare[6] then
    for _, result in ipairs(children_of(state, rare[6])) do row[#row + 1] = result end
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
  -- A step that is a pipeline needs no type.
  local able, known = { ['*'] = true }, {}

  local function has(step_type)
    if able[step_type] == nil then
      able[step_type] = string.find(step_types, ' ' .. step_type .. ' ', 1, true) ~= nil
    end
    return able[step_type]
  end

  local function is_plain(step_type)
    return string.find(plain_types, ' ' .. step_type .. ' ', 1, true) ~= nil
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
    if not known[name] then
      local hash, words = pipelines_stem .. pipeline, {}
      local text = redis.call('HGET', hash, 'steps:' .. version) or read_definition(hash, version)
      for word in string.gmatch(text, '%S+') do words[#words + 1] = word end
      known[name] = words
    end
    return known[name]
  end

  -- The type of the next step, or nil. Any node can end a transaction that must be cancelled or is
  -- past its deadline.
  local function next_type(state, about, found)
    local step = found[7] and tonumber(redis.call('HGET', state, 'step') or 0) or 0
    local need = steps_of(about.pipeline, found[4])[step + 1]
    if not need or tonumber(found[6]) <= now_ms then return nil end
    if found[7] and redis.call('HEXISTS', state, 'cancel') == 1 then return nil end
    return need
  end

  local served = {}
  for _, each in ipairs(groups) do served[each.name] = true end

  -- Waiting transactions are older than those in the queue.
  local function take_waiting(lists, wanted)
    for _, list in ipairs(lists) do
      local queue, group, step_type = string.match(list, '^([^|]*)|([^|]*)|(.*)$')
      local most = left
      if is_plain(step_type) then most = math.min(most, threads_left) end
      if wanted == 'alone' then most = math.min(most, alone_left) end
      if bytes < REPLY_BYTES_MAX and most > 0 and queue == wanted and served[group]
        and has(step_type) then
        local popped = redis.call('ZPOPMIN', wait_stem .. list, math.min(most, 50))
        local ids = {}
        for at = 1, #popped, 2 do ids[#ids + 1] = popped[at] end
        left = left - #ids
        if #ids > 0 then call_many('ZREM', wait_stem .. 'deadlines', ids) end
        remove_list_if_empty(list)
        for _, id in ipairs(ids) do take(id, group, nil, step_type) end
        if #ids == 50 then taken_more = true end
      end
    end
  end

  steps = {
    next_type = next_type, has = has, is_plain = is_plain, wait_for = wait_for,
    take_waiting = take_waiting,
  }
end

-- `queue` is the queue of the entry, or nil if the transaction waited for the step type `need`.
function take(id, group, queue, need)
  local state = states_stem .. id
  local found = redis.call('HMGET', state, 'status', 'run', 'label', 'version', 'data', 'deadline',
    'more', 'faults')
  if not found[1] then
    record_event('dropped', id, label(group .. '|-|-'), '"d":"no_state"')
    refused = refused + 1
    return
  end
  -- It was cancelled while it was queued, or it was queued twice. Nothing is lost.
  if found[1] ~= 'queued' then
    refused = refused + 1
    return
  end
  local about, version = label(found[3]), found[4]
  local suspect, plain = false, false
  if found[8] then
    local _, crashes = read_faults(found[8])
    suspect = crashes >= SUSPECT_CRASHES
  end
  if not queue then
    redis.call('HDEL', state, 'waits')
  elseif about[version] == nil then
    local name = ' ' .. about.pipeline .. '|' .. version .. ' '
    about[version] = string.find(pipelines, name, 1, true) ~= nil
  end
  if not queue or suspect or not about[version] then
    if not steps then step_functions() end
    need = need or steps.next_type(state, about, found)
    plain = need and steps.is_plain(need)
    local missing = need and not steps.has(need)
    if missing or plain and threads_left <= 0 or need and suspect and alone_left <= 0 then
      local place = suspect and not missing and 'alone' or queue or 'out'
      steps.wait_for(state, id, place, about, need, found[6], missing)
      waits = waits + 1
      return
    end
    if plain then threads_left = threads_left - 1 end
    if suspect then alone_left = 0 end
  end
  local run = run_of((tonumber(found[2]) or 0) + 1)
  redis.call('HSET', state, 'status', 'running', 'run', run.text, 'node', node, 'taken', now_text)
  processing[#processing + 1] = run.score
  processing[#processing + 1] = id
  record_event('taken', id, about, run.more)
  local row = {
    id, run.text, run.score, found[3], version, found[5], tonumber(found[6]) - now_ms,
    plain and 1 or 0,
  }
  if found[7] then add_rare(row, state, found[8]) end
  bytes = bytes + #found[5]
  taken[#taken + 1] = row
end

local lists = waiting and redis.call('ZRANGE', wait_stem .. 'places', 0, -1) or {}
if #lists > 0 then step_functions() end
redis.call('ZADD', nodes_key, now_text, node)
if #lists > 0 then steps.take_waiting(lists, 'alone') end

-- Takes up to `most` entries of a list. What exceeds the size of the reply returns to its front.
local function take_from_list(group, queue, most)
  local ids = most > 0 and bytes < REPLY_BYTES_MAX and redis.call('LPOP', group[queue], most)
  if not ids then return 0 end
  for index, id in ipairs(ids) do
    if bytes >= REPLY_BYTES_MAX then
      for last = #ids, index, -1 do redis.call('LPUSH', group[queue], ids[last]) end
      return index - 1
    end
    take(id, group.name, queue)
  end
  return #ids
end

-- The same where owners take turns.
local function take_in_turn(group, queue, most)
  local name = queue .. '|' .. group.name
  if most <= 0 or bytes >= REPLY_BYTES_MAX then return 0 end
  local popped = redis.call('ZPOPMIN', fair_stem .. name, most)
  for at = 1, #popped, 2 do
    if bytes >= REPLY_BYTES_MAX then
      for rest = at, #popped, 2 do
        redis.call('ZADD', fair_stem .. name, popped[rest + 1], popped[rest])
      end
      return (at - 1) / 2
    end
    take(popped[at], group.name, queue)
  end
  if redis.call('EXISTS', fair_stem .. name) == 0 then redis.call('DEL', turns_stem .. name) end
  return #popped / 2
end

-- A queue has both kinds of entries while the setting changes: then each kind gets half.
local function take_from(group, queue, most)
  if queue == 'admin' or redis.call('ZCARD', fair_stem .. queue .. '|' .. group.name) == 0 then
    return take_from_list(group, queue, most)
  end
  local count = take_from_list(group, queue, math.ceil(most / 2))
  count = count + take_in_turn(group, queue, most - count)
  return count + take_from_list(group, queue, most - count)
end

local share = math.ceil(left / math.max(1, #groups))
for pass = 1, #groups > 1 and 2 or 1 do
  for _, queue in ipairs({ 'admin', 'out', 'in' }) do
    if pass == 1 and #lists > 0 then steps.take_waiting(lists, queue) end
    for _, group in ipairs(groups) do
      local most = pass == 1 and math.min(left, share - (group.taken or 0)) or left
      local count = take_from(group, queue, most)
      group.taken, left = (group.taken or 0) + count, left - count
    end
  end
end
if #processing > 0 then call_many('ZADD', processing_key, processing) end
write_batch()
local more = left <= 0 or bytes >= REPLY_BYTES_MAX or taken_more
return reply.dequeued(taken, refused, waits, more and 1 or 0)
