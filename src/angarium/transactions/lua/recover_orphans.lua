#!lua
-- Guarantee: what a silent node had taken, and what a lost reply gave to the caller, is queued again
-- at the step it was in; the run number keeps the former holder from writing. The caller learns
-- which of its own are to be cancelled, should it have missed the notice.
-- KEYS: 3 to 5 statistics, 6 stem of states, 7 processing, 8 nodes, 9 to 11 stems of qIn, qOut and
-- qAdmin
-- ARGV: 4 notify, 5 work, 6 node that asks, 7 timeout_ms, 8 offset, 9 count, 10 as_of_ms: what the
-- caller took before that is among the ids, unless a reply was lost, 11 'all' | 'own': whether it is
-- fit to judge the silence of others, 12 number of ids the node holds; the ids
-- Returns: {recovered, next offset or -1, {id to be cancelled, …}}
-- Events: recovered, dropped (module transactions)
-- Repeats: safe
-- include: transition
-- include: transactions
local node, timeout_ms, offset, count = ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8]), ARGV[9]
local STEMS = { ['in'] = KEYS[9], out = KEYS[10], admin = KEYS[11] }
local as_of_ms, judges = tonumber(ARGV[10]), ARGV[11] == 'all'
local held, alive, leaving, cancels = {}, {}, {}, {}
for index = 13, #ARGV do held[ARGV[index]] = true end

local function lives(other)
  if alive[other] == nil then
    local seen_ms = tonumber(redis.call('ZSCORE', KEYS[8], other) or 0)
    if seen_ms > now_ms then
      -- The clock went back: silence is counted from now, not from then.
      redis.call('ZADD', KEYS[8], now_text, other)
      seen_ms = now_ms
    end
    alive[other] = now_ms - seen_ms < timeout_ms
  end
  return alive[other]
end

-- Younger ones can't be orphans yet: nobody has been silent for long enough since. What was taken
-- in the future was taken before the clock went back, and is looked at too.
local before_ms, after_ms = math.min(now_ms, as_of_ms) - timeout_ms, now_ms + timeout_ms
local oldest = redis.call('ZRANGEBYSCORE', KEYS[7], '-inf', string.format('%.0f', before_ms),
  'LIMIT', offset, count)
local full = #oldest == tonumber(count)
if not full then
  local ahead = redis.call('ZRANGEBYSCORE', KEYS[7], string.format('%.0f', after_ms), '+inf',
    'LIMIT', 0, 1000)
  for _, id in ipairs(ahead) do oldest[#oldest + 1] = id end
end
for _, id in ipairs(oldest) do
  local state = KEYS[6] .. id
  local found = redis.call('HMGET', state, 'status', 'run', 'label', 'queue', 'node', 'cancel')
  local holder = found[5]
  local orphan
  if holder == node then
    orphan = not held[id]
    if found[6] and not orphan then cancels[#cancels + 1] = id end
  else
    orphan = judges and holder and not lives(holder)
  end
  if found[1] ~= 'running' then
    leaving[#leaving + 1] = id
    if not found[1] then tell('dropped', id, label('-|-|-'), '"d":"no_state"') end
  elseif orphan then
    redis.call('HSET', state, 'status', 'queued', 'updated', now_text)
    local about = label(found[3])
    redis.call('LPUSH', STEMS[found[4] or 'in'] .. about.group, id)
    hints[#hints + 1] = 'work ' .. about.group
    leaving[#leaving + 1] = id
    tell('recovered', id, about, '"n":"' .. holder .. '","a":' .. found[2])
  end
end
if #leaving > 0 then call_many('ZREM', KEYS[7], leaving) end
settle()
return { #leaving, full and offset + #oldest - #leaving or -1, cancels }
