#!lua
-- Guarantee: transactions of a silent node, and those that a lost reply assigned to the caller, are
-- queued again at their step. The former node can no longer write, because its run number is old.
-- The caller gets the ids of its transactions that must be cancelled, in case a hint was lost.
-- KEYS: 3 to 5 statistics, 6 stem of states, 7 processing, 8 nodes, 9 to 11 stems of qIn, qOut and
-- qAdmin
-- ARGV: 4 notify, 5 work, 6 calling node, 7 timeout_ms, 8 offset, 9 count, 10 as_of_ms: the ids
-- include all that the caller took before this time, unless a reply was lost, 11 'all' recovers from
-- silent nodes too | 'own' does not, 12 number of ids that the caller runs; the ids
-- Returns: {number that left processingZ, next offset or -1, {id to be cancelled, …}}
-- Events: recovered, dropped (module transactions)
-- Repeats: safe
-- include: transition
-- include: transactions
local node, timeout_ms, offset, count = ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8]), ARGV[9]
local STEMS = { ['in'] = KEYS[9], out = KEYS[10], admin = KEYS[11] }
local as_of_ms, recovers_others = tonumber(ARGV[10]), ARGV[11] == 'all'
local running_here, alive, removed, cancels = {}, {}, {}, {}
for index = 13, #ARGV do running_here[ARGV[index]] = true end

local function is_alive(other)
  if alive[other] == nil then
    local seen_ms = tonumber(redis.call('ZSCORE', KEYS[8], other) or 0)
    if seen_ms > now_ms then
      -- The clock went back, so the silence is counted from now.
      redis.call('ZADD', KEYS[8], now_text, other)
      seen_ms = now_ms
    end
    alive[other] = now_ms - seen_ms < timeout_ms
  end
  return alive[other]
end

-- Transactions taken after `before_ms` cannot be orphans: no node has been silent for long enough
-- since. A score in the future means that the clock went back, so those are checked too.
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
    orphan = not running_here[id]
    if found[6] and not orphan then cancels[#cancels + 1] = id end
  else
    orphan = recovers_others and holder and not is_alive(holder)
  end
  if found[1] ~= 'running' then
    removed[#removed + 1] = id
    if not found[1] then record_event('dropped', id, label('-|-|-'), '"d":"no_state"') end
  elseif orphan then
    redis.call('HSET', state, 'status', 'queued', 'updated', now_text)
    local about = label(found[3])
    redis.call('LPUSH', STEMS[found[4] or 'in'] .. about.group, id)
    hints[#hints + 1] = 'work ' .. about.group
    removed[#removed + 1] = id
    record_event('recovered', id, about, '"n":"' .. holder .. '","a":' .. found[2])
  end
end
if #removed > 0 then call_many('ZREM', KEYS[7], removed) end
write_batch()
return { #removed, full and offset + #oldest - #removed or -1, cancels }
