#!lua
-- Guarantee: one node at a time leases due webhooks. The next attempt is scheduled with the lease, so a
-- crash loses none. A webhook is removed when it is delivered or has no attempts left. A URL that keeps
-- failing is disabled for a period.
-- KEYS: 3 to 5 statistics, 6 webhooks, 7 lock1, 8 lock2, 9 stem of states, 10 stem of counters
-- ARGV: 4 notify, 5 work, 6 node, 7 lock1_ms, 8 lock2_ms, 9 retries_max, 10 delay_ms, 11 factor,
-- 12 jitter from 0 to 1, 13 fail_limit, 14 fail_ms, 15 disable_ms, 16 count, 17 number of results;
-- per result: id, version, 'delivered' | 'failed', problem;
-- then the state of the holder ('' | 'idle' | 'leaving', see role)
-- Returns: {grant, {{'disabled', url} | {'given_up', url, id}, …}, {id, url, version, attempt,
-- field, value, …}, …}
-- Events: webhook_delivered, webhook_failed, webhook_given_up, webhook_tried (module transactions)
-- Repeats: no, a failure would count twice
-- include: transition
-- include: transactions
-- include: grant
-- include: role
local retries_max, delay_ms, factor = tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11])
local jitter, fail_limit = tonumber(ARGV[12]), tonumber(ARGV[13])
local HOOK = { 'label', 'webhook', 'hookVersion', 'hookTries' }
local alerts = {}

local function give_up(id, state, found)
  redis.call('ZREM', KEYS[6], id)
  redis.call('HSET', state, 'hookGivenUp', now_text)
  record_event('webhook_given_up', id, label(found[1]))
  alerts[#alerts + 1] = { 'given_up', found[2], id }
end

local function count_failure(url)
  local counter = KEYS[10] .. url
  if redis.call('GET', counter) == 'disabled' then return end
  local failures = redis.call('INCR', counter)
  if failures == 1 then redis.call('PEXPIRE', counter, ARGV[14]) end
  if failures >= fail_limit then
    redis.call('SET', counter, 'disabled', 'PX', ARGV[15])
    alerts[#alerts + 1] = { 'disabled', url }
  end
end

local function report(id, version, outcome, detail)
  local state = KEYS[9] .. id
  local found = redis.call('HMGET', state, unpack(HOOK))
  if not found[2] then return end
  local about, current = label(found[1]), found[3] == version
  if outcome == 'delivered' then
    redis.call('DEL', KEYS[10] .. found[2])
    -- A newer report may have become due during the attempt. The newer one stays scheduled.
    if current and redis.call('ZREM', KEYS[6], id) == 1 then
      redis.call('HSET', state, 'hookDelivered', now_text)
      record_event('webhook_delivered', id, about, '"a":' .. found[4])
    end
    return
  end
  redis.call('HSET', state, 'hookError', detail)
  record_event('webhook_failed', id, about, '"d":' .. brief(detail))
  count_failure(found[2])
  local due = current and redis.call('ZSCORE', KEYS[6], id)
  if due and tonumber(found[4]) >= retries_max then give_up(id, state, found) end
end

for index = 18, 17 + 4 * tonumber(ARGV[17]), 4 do
  report(ARGV[index], ARGV[index + 1], ARGV[index + 2], ARGV[index + 3])
end
local holder_state = ARGV[18 + 4 * tonumber(ARGV[17])]
local grant = ask_role(KEYS[7], KEYS[8], ARGV[6], ARGV[7], ARGV[8], holder_state)
local reply = { grant, alerts }
local count = (grant == 'granted' or grant == 'working') and tonumber(ARGV[16]) or 0
local due = count > 0
  and redis.call('ZRANGEBYSCORE', KEYS[6], '-inf', now_text, 'LIMIT', 0, count) or {}
for _, id in ipairs(due) do
  local state = KEYS[9] .. id
  local found = redis.call('HMGET', state, unpack(HOOK))
  local attempt = (tonumber(found[4]) or 0) + 1
  if not found[2] then
    redis.call('ZREM', KEYS[6], id)
  elseif redis.call('GET', KEYS[10] .. found[2]) == 'disabled' then
    local left_ms = math.max(1, redis.call('PTTL', KEYS[10] .. found[2]))
    redis.call('ZADD', KEYS[6], now_ms + left_ms + math.floor(jitter * 1000), id)
  elseif attempt > retries_max then
    give_up(id, state, found) -- the process of the last attempt died before it reported the result
  else
    local pause_ms = math.floor(delay_ms * factor ^ (attempt - 1) * (0.9 + 0.2 * jitter))
    redis.call('ZADD', KEYS[6], now_ms + pause_ms, id)
    redis.call('HSET', state, 'hookTries', attempt)
    record_event('webhook_tried', id, label(found[1]), '"a":' .. attempt)
    local item = redis.call('HGETALL', state)
    for index, value in ipairs({ id, found[2], found[3], tostring(attempt) }) do
      table.insert(item, index, value)
    end
    reply[#reply + 1] = item
  end
end
write_batch()
return reply
