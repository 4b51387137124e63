-- Transactions that wait for a node with their next step type. Needs `transactions`.
--   wait_stem  stem of qWaitZ, set by the script
-- A waiting list is named «queue|group|step type». The lists, 'places' (their names), 'deadlines' and
-- the states change together.
local wait_stem
local last_scores = {}

-- The time when the wait began, and always later than the entries before it, to keep the order.
local function wait_score(key)
  local last = last_scores[key] or tonumber(redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]) or 0
  last_scores[key] = math.max(now_ms, last + 1 / 1024)
  return string.format('%.10f', last_scores[key])
end

local function wait_for(state, id, queue, about, step_type, deadline)
  local list = queue .. '|' .. about.group .. '|' .. step_type
  local key = wait_stem .. list
  redis.call('HSET', state, 'waits', list, 'updated', now_text)
  redis.call('ZADD', key, wait_score(key), id)
  redis.call('ZADD', wait_stem .. 'deadlines', deadline, id)
  -- Nodes that poll a list with entries need no hint.
  if redis.call('ZADD', wait_stem .. 'places', 'NX', now_text, list) == 1 then
    hints[#hints + 1] = 'waits ' .. about.group .. '|' .. step_type
  end
  record_event('step_awaited', id, about, '"d":"' .. step_type .. '"')
end

local function remove_list_if_empty(list)
  if redis.call('EXISTS', wait_stem .. list) == 0 then
    redis.call('ZREM', wait_stem .. 'places', list)
  end
end

local function stop_waiting(id, list)
  redis.call('ZREM', wait_stem .. list, id)
  redis.call('ZREM', wait_stem .. 'deadlines', id)
  remove_list_if_empty(list)
end
