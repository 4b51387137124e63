#!lua
-- Guarantee: what a silent node had taken, and what a lost reply gave to the caller, is queued again
-- at the step it was in; the run number keeps the former holder from writing.
-- KEYS: 3 to 5 statistics, 6 stem of states, 7 processing, 8 nodes, 9 to 11 stems of qIn, qOut and
-- qAdmin
-- ARGV: 4 notify, 5 work, 6 node that asks, 7 timeout_ms, 8 offset, 9 count, 10 number of ids the
-- node holds; the ids
-- Returns: {recovered, next offset or -1}
-- Events: recovered, dropped (room transactions)
-- Repeats: safe
-- include: transition
-- include: transactions
local node, timeout_ms, offset, count = ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8]), ARGV[9]
local STEMS = { ['in'] = KEYS[9], out = KEYS[10], admin = KEYS[11] }
local held, alive, leaving = {}, {}, {}
for index = 11, #ARGV do held[ARGV[index]] = true end

local function lives(other)
  if alive[other] == nil then
    local seen_ms = tonumber(redis.call('ZSCORE', KEYS[8], other) or 0)
    alive[other] = now_ms - seen_ms < timeout_ms
  end
  return alive[other]
end

-- Younger ones can't be orphans yet: nobody has been silent for long enough since.
local oldest = redis.call('ZRANGEBYSCORE', KEYS[7], '-inf', string.format('%.0f', now_ms - timeout_ms),
  'LIMIT', offset, count)
for _, id in ipairs(oldest) do
  local state = KEYS[6] .. id
  local found = redis.call('HMGET', state, 'status', 'run', 'label', 'queue', 'node')
  local holder = found[5]
  local orphan = holder == node and not held[id] or holder ~= node and holder and not lives(holder)
  if found[1] ~= 'running' then
    leaving[#leaving + 1] = id
    if not found[1] then tell('dropped', id, label('-|-|-'), '"d":"no_state"') end
  elseif orphan then
    redis.call('HSET', state, 'status', 'queued', 'updated', now_text)
    local about = label(found[3])
    redis.call('LPUSH', STEMS[found[4]] .. about.group, id)
    hints[#hints + 1] = 'work ' .. about.group
    leaving[#leaving + 1] = id
    tell('recovered', id, about, '"n":"' .. holder .. '","a":' .. found[2])
  end
end
if #leaving > 0 then call_many('ZREM', KEYS[7], leaving) end
settle()
local full = #oldest == tonumber(count)
return { #leaving, full and offset + #oldest - #leaving or -1 }
