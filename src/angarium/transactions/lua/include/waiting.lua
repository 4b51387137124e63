-- Transactions that wait for a node with their next step type. Needs `transactions`.
--   wait_stem  stem of qWaitZ, set by the script
-- A place is «queue|group|step type». Places, deadlines and states change together.
local wait_stem
local last_scores = {}

-- When it began to wait; later than all before it in the same place, so that order is kept.
local function wait_score(key)
  local last = last_scores[key] or tonumber(redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]) or 0
  last_scores[key] = math.max(now_ms, last + 1 / 1024)
  return string.format('%.10f', last_scores[key])
end

local function wait_for(state, id, queue, about, step_type, deadline)
  local place = queue .. '|' .. about.group .. '|' .. step_type
  local key = wait_stem .. place
  redis.call('HSET', state, 'waits', place, 'updated', now_text)
  redis.call('ZADD', key, wait_score(key), id)
  redis.call('ZADD', wait_stem .. 'deadlines', deadline, id)
  -- Only a place that was empty may have idle nodes in front of it.
  if redis.call('ZADD', wait_stem .. 'places', 'NX', now_text, place) == 1 then
    hints[#hints + 1] = 'waits ' .. about.group .. '|' .. step_type
  end
  tell('step_awaited', id, about, '"d":"' .. step_type .. '"')
end

local function forget_place_if_empty(place)
  if redis.call('EXISTS', wait_stem .. place) == 0 then
    redis.call('ZREM', wait_stem .. 'places', place)
  end
end

local function stop_waiting(id, place)
  redis.call('ZREM', wait_stem .. place, id)
  redis.call('ZREM', wait_stem .. 'deadlines', id)
  forget_place_if_empty(place)
end
