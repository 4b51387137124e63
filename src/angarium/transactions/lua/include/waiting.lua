-- Transactions that wait for a node with their next step type. Needs `transactions`.
-- A waiting list is named «queue|group|step type», with the queue `alone` for transactions that run
-- beside no other of their kind. The lists, 'places' (their names), 'deadlines' and
-- the states change together.
local last_scores = {}

-- The time when the wait began, and always later than the entries before it, to keep the order.
local function wait_score(key)
  local last = last_scores[key] or tonumber(redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]) or 0
  last_scores[key] = math.max(now_ms, last + 1 / 1024)
  return string.format('%.10f', last_scores[key])
end

-- `missing`: the node lacks the step, so the wait is shown; else the node has no free slot for it.
local function wait_for(state, id, queue, about, step_type, deadline, missing)
  local list = queue .. '|' .. about.group .. '|' .. step_type
  local key = wait_stem .. list
  redis.call('HSET', state, 'waits', list, 'updated', now_text)
  local score = owners_take_turns() and place_in_turn(key, list, about.owner) or wait_score(key)
  redis.call('ZADD', key, score, id)
  redis.call('ZADD', wait_stem .. 'deadlines', deadline, id)
  -- Nodes that poll a list with entries need no hint.
  if redis.call('ZADD', wait_stem .. 'places', 'NX', now_text, list) == 1 then
    hints[#hints + 1] = 'waits ' .. about.group .. '|' .. step_type
  end
  if missing then record_event('step_awaited', id, about, '"d":"' .. step_type .. '"') end
end

local function remove_list_if_empty(list)
  if redis.call('EXISTS', wait_stem .. list) == 0 then
    redis.call('ZREM', wait_stem .. 'places', list)
    redis.call('DEL', turns_stem .. list)
  end
end

local function stop_waiting(id, list)
  redis.call('ZREM', wait_stem .. list, id)
  redis.call('ZREM', wait_stem .. 'deadlines', id)
  remove_list_if_empty(list)
end
