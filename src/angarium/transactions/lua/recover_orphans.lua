#!lua
-- Guarantee: transactions of a silent node, and those that a lost reply assigned to the caller, are
-- queued again at their step, unless their nodes crashed `max_runs` times: then they are dead letters.
-- The former node can no longer write, because its run number is old.
-- The caller gets the ids of its transactions that must be cancelled, in case a hint was lost, and
-- the dead letters with their reasons.
-- Events: recovered, dead, resumed, dropped (module transactions)
-- Repeats: safe
-- include: transition
-- include: transactions
-- include: transaction_end
local STEMS = { ['in'] = in_stem, out = out_stem, admin = admin_stem }
local running_here, alive, removed, cancels, dead = {}, {}, {}, {}, {}
each_item(function(transaction_id) running_here[transaction_id] = true end)

-- Nodes are judged as of the caller's heartbeat. If Redis stood still between the two calls, the
-- heartbeats of the others wait behind this one.
local judged_ms = math.min(now_ms, as_of_ms)

local function is_alive(other)
  if alive[other] == nil then
    local seen_ms = tonumber(redis.call('ZSCORE', nodes_key, other) or 0)
    if seen_ms > now_ms then
      -- The clock went back, so the silence is counted from now.
      redis.call('ZADD', nodes_key, now_text, other)
      seen_ms = now_ms
    end
    alive[other] = judged_ms - seen_ms < timeout_ms
  end
  return alive[other]
end

-- Counts a crash of the node that ran the step. True if it was the last one that is allowed: the
-- transaction has ended.
local function too_many_crashes(state, id, found)
  local tries, crashes = read_faults(found[8])
  crashes = crashes + 1
  redis.call('HSET', state, 'faults', tries .. ' ' .. crashes, 'more', 1)
  if crashes < max_runs then return false end
  local remark = string.format('step %d: the node that ran it crashed or fell silent %d times',
    tonumber(found[10] or 0) + 1, crashes)
  if found[9] then remark = remark .. '; last error: ' .. found[9] end
  end_transaction(state, id, { 'running', found[2], found[3], true }, 'failed', '', remark, 'crashed')
  dead[#dead + 1], dead[#dead + 2] = id, remark
  return true
end

-- Transactions taken after `before_ms` cannot be orphans: no node has been silent for long enough
-- since. A score in the future means that the clock went back, so those are checked too.
local before_ms, after_ms = judged_ms - timeout_ms, now_ms + timeout_ms
local oldest = redis.call('ZRANGEBYSCORE', processing_key, '-inf', string.format('%.0f', before_ms),
  'LIMIT', offset, limit)
local full = #oldest == limit
if not full then
  local ahead = redis.call('ZRANGEBYSCORE', processing_key, string.format('%.0f', after_ms), '+inf',
    'LIMIT', 0, 1000)
  for _, id in ipairs(ahead) do oldest[#oldest + 1] = id end
end
for _, id in ipairs(oldest) do
  local state = states_stem .. id
  local found = redis.call('HMGET', state, 'status', 'run', 'label', 'queue', 'node', 'cancel',
    'more', 'faults', 'error', 'step')
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
  elseif orphan and too_many_crashes(state, id, found) then
    removed[#removed + 1] = id
  elseif orphan then
    redis.call('HSET', state, 'status', 'queued', 'updated', now_text)
    local about = label(found[3])
    local queue = found[4] or 'in'
    push_front(STEMS[queue], queue, about, id)
    removed[#removed + 1] = id
    record_event('recovered', id, about, '"n":"' .. holder .. '","a":' .. found[2])
  end
end
if #removed > 0 then call_many('ZREM', processing_key, removed) end
end_all()
write_batch()
return reply.recovered(#removed, full and offset + #oldest - #removed or -1, cancels, dead)
