#!lua
-- Guarantee: one node at a time leases due webhooks. The next attempt is scheduled with the lease, so a
-- crash loses none. A webhook is removed when it is delivered or has no attempts left. A URL that keeps
-- failing is disabled for a period.
-- Events: webhook_delivered, webhook_failed, webhook_given_up, webhook_tried (module transactions)
-- Repeats: no, a failure would count twice
-- include: transition
-- include: transactions
-- include: grant
-- include: role
local HOOK = { 'label', 'webhook', 'hookVersion', 'hookTries' }
local alerts = {}

local function give_up(id, state, found)
  redis.call('ZREM', webhooks_key, id)
  redis.call('HSET', state, 'hookGivenUp', now_text)
  record_event('webhook_given_up', id, label(found[1]))
  alerts[#alerts + 1] = { 'given_up', found[2], id }
end

local function count_failure(url)
  local counter = counters_stem .. url
  if redis.call('GET', counter) == 'disabled' then return end
  local failures = redis.call('INCR', counter)
  if failures == 1 then redis.call('PEXPIRE', counter, fail_ms) end
  if failures >= fail_limit then
    redis.call('SET', counter, 'disabled', 'PX', disable_ms)
    alerts[#alerts + 1] = { 'disabled', url }
  end
end

local function report(id, version, outcome, detail, state)
  local found = redis.call('HMGET', state, unpack(HOOK))
  if not found[2] then return end
  local about, current = label(found[1]), found[3] == version
  if outcome == 'delivered' then
    redis.call('DEL', counters_stem .. found[2])
    -- A newer report may have become due during the attempt. The newer one stays scheduled.
    if current and redis.call('ZREM', webhooks_key, id) == 1 then
      redis.call('HSET', state, 'hookDelivered', now_text)
      record_event('webhook_delivered', id, about, '"a":' .. found[4])
    end
    return
  end
  redis.call('HSET', state, 'hookError', detail)
  record_event('webhook_failed', id, about, '"d":' .. brief(detail))
  count_failure(found[2])
  local due = current and redis.call('ZSCORE', webhooks_key, id)
  if due and tonumber(found[4]) >= retries_max then give_up(id, state, found) end
end

each_item(function(transaction_id, version, outcome, problem, state_key)
  report(transaction_id, version, outcome, problem, state_key)
end)
local grant = ask_role(lock1_key, lock2_key, node, lock1_ms, lock2_ms, holder_state)
local rows, count = {}, (grant == 'granted' or grant == 'working') and limit or 0
local due = count > 0
  and redis.call('ZRANGEBYSCORE', webhooks_key, '-inf', now_text, 'LIMIT', 0, count) or {}
-- One slow receiver must not fill all slots of the sender.
local in_flight = {}
for host, number in string.gmatch(busy, '(%S+)=(%d+)') do in_flight[host] = tonumber(number) end
local function host_of(url) return string.match(url, '^%a+://([^/?#]+)') or '' end

for _, id in ipairs(due) do
  local state = states_stem .. id
  local found = redis.call('HMGET', state, unpack(HOOK))
  local attempt = (tonumber(found[4]) or 0) + 1
  if not found[2] then
    redis.call('ZREM', webhooks_key, id)
  elseif redis.call('GET', counters_stem .. found[2]) == 'disabled' then
    local left_ms = math.max(1, redis.call('PTTL', counters_stem .. found[2]))
    redis.call('ZADD', webhooks_key, now_ms + left_ms + math.floor(jitter * 1000), id)
  elseif (in_flight[host_of(found[2])] or 0) >= receiver_max then
    redis.call('ZADD', webhooks_key, now_ms + 500 + math.floor(jitter * 500), id)
  elseif attempt > retries_max then
    give_up(id, state, found) -- the process of the last attempt died before it reported the result
  else
    local pause_ms = math.floor(delay_ms * factor ^ (attempt - 1) * (0.9 + 0.2 * jitter))
    redis.call('ZADD', webhooks_key, now_ms + pause_ms, id)
    local host = host_of(found[2])
    in_flight[host] = (in_flight[host] or 0) + 1
    redis.call('HSET', state, 'hookTries', attempt)
    record_event('webhook_tried', id, label(found[1]), '"a":' .. attempt)
    local item = redis.call('HGETALL', state)
    for index, value in ipairs({ id, found[2], found[3], tostring(attempt) }) do
      table.insert(item, index, value)
    end
    rows[#rows + 1] = item
  end
end
write_batch()
return reply.leased(grant, alerts, rows)
