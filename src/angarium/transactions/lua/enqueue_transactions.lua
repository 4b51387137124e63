#!lua
-- Guarantee: a start is complete (externalId reserved, state saved, id queued, event counted) or
-- changes nothing. An externalId has one transaction. An owner keeps to its quota.
-- Events: started (module transactions)
-- Repeats: safe, by id
-- include: transition
-- include: transactions
local kinds = {}
-- How many more the queue of a group takes. Transactions that wait for a step type count too.
local queues = {}
local function queue_of(group)
  if not queues[group] then
    local length = redis.call('LLEN', in_stem .. group)
      + redis.call('ZCARD', fair_stem .. 'in|' .. group)
      + redis.call('ZCARD', wait_stem .. 'deadlines')
    queues[group] = { free = queue_max - length }
  end
  return queues[group]
end

-- What an owner with a quota has left. The starts of a second are regained evenly.
local quotas = {}
local function quota_of(owner, starts_per_s, bytes_max)
  if not quotas[owner] then
    local found = redis.call('HMGET', quota_stem .. owner, 'starts', 'at', 'bytes')
    local passed_ms = math.max(0, now_ms - (tonumber(found[2]) or 0))
    local starts = (tonumber(found[1]) or starts_per_s) + passed_ms * starts_per_s / 1000
    quotas[owner] = {
      starts = starts_per_s > 0 and math.min(starts_per_s, starts) or math.huge, charged = 0,
      bytes = bytes_max > 0 and bytes_max - (tonumber(found[3]) or 0) or math.huge,
    }
  end
  return quotas[owner]
end

local function charge(quota, state, size)
  quota.starts, quota.charged = quota.starts - 1, quota.charged + 1
  if quota.bytes == math.huge then return end
  quota.bytes, quota.stored = quota.bytes - size, (quota.stored or 0) + size
  redis.call('HSET', state, 'charged', size)
end

local function write_quotas()
  for owner, quota in pairs(quotas) do
    local key = quota_stem .. owner
    if quota.charged > 0 and quota.starts < math.huge then
      redis.call('HSET', key, 'starts', string.format('%.6f', quota.starts), 'at', now_text)
    end
    if quota.stored then redis.call('HINCRBY', key, 'bytes', quota.stored) end
    if redis.call('HEXISTS', key, 'bytes') == 1 then
      redis.call('PERSIST', key)
    else
      redis.call('EXPIRE', key, 60)
    end
  end
end

local function read_kind(name, version, owner, starts_per_s, bytes_max)
  local hash, found = pipelines_stem .. name, nil
  if version == '' then
    found = redis.call('HMGET', hash, 'current', 'group', 'timeout')
  else
    found = redis.call('HMGET', hash, 'current', 'group:' .. version, 'timeout:' .. version)
  end
  if not found[1] then return { about = {}, refusal = reply.unknown_pipeline } end
  if not found[2] then return { about = {}, refusal = reply.unknown_version } end
  return {
    quota = starts_per_s ~= '' and quota_of(owner, tonumber(starts_per_s), tonumber(bytes_max)),
    version = version == '' and found[1] or version, group = found[2], queue = queue_of(found[2]),
    about = label(found[2] .. '|' .. name .. '|' .. owner),
    deadline = string.format('%.0f', now_ms + (tonumber(found[3]) or timeout_ms)),
    -- An open transaction can be found by its externalId after the period in which it is unique.
    external_ms = string.format('%.0f', math.max(external_ms, tonumber(found[3]) or timeout_ms)),
  }
end

-- The values that all starts of a pipeline by an owner share. Most items of a batch are of one kind.
local function kind_of(text)
  local kind = kinds[text]
  if not kind then
    kind = read_kind(string.match(text, '^([^|]*)|([^|]*)|([^|]*)|?([^|]*)|?([^|]*)$'))
    kinds[text] = kind
  end
  return kind
end

-- One EXISTS covers all items, because each call has a fixed cost.
local existing = 0
for first = 1, item_count, 1000 do
  existing = existing + redis.call('EXISTS', item_keys(first, math.min(first + 999, item_count)))
end

-- Whether an externalId is still unique. An archived transaction has only the time in its id.
local function is_unique(first)
  local created_ms = redis.call('HGET', states_stem .. first, 'created')
    or tonumber(string.sub(first, 1, 12), 16) or now_ms
  return now_ms - tonumber(created_ms) < external_ms
end

-- The reason to refuse this start, or nil.
local function refusal(state, external_key, kind)
  if kind.refusal then return kind.refusal end
  local status = existing > 0 and redis.call('HGET', state, 'status')
  if status then return status == 'queued' and reply.already_queued or reply.exists end
  if not external_key then return nil end
  local first = redis.call('GET', external_key)
  -- If this is the start's own id, its state has ended and is in the archive.
  if first and is_unique(first) then return reply.duplicate(first) end
end

-- Adds the fields that few starts have.
local function add(values, field, value)
  if value == '' then return end
  values[#values + 1] = field
  values[#values + 1] = value
end

local statuses = each_item(function(transaction_id, kind, data, external_id, metadata, webhook, options,
    state_key)
  local found = kind_of(kind)
  local about = found.about
  local external_key = external_id ~= '' and about.owner
    and externals_stem .. about.owner .. '|' .. external_id
  local refused = refusal(state_key, external_key, found)
  if refused then return refused end
  local is_admin = options ~= '' and string.find(options, 'a', 1, true)
  local quota, size = found.quota, #data + #metadata
  if quota and quota.starts < 1 then return reply.too_many_starts end
  if quota and quota.bytes < size then return reply.too_many_bytes end
  if not is_admin then
    local queue = found.queue
    if queue.free <= 0 then return reply.queue_full end
    queue.free = queue.free - 1
  end
  local stem = in_stem
  if external_key or metadata ~= '' or webhook ~= '' or options ~= '' then
    local values = {
      'status', 'queued', 'label', about.name, 'version', found.version, 'data', data, 'created',
      now_text, 'deadline', found.deadline, 'more', 1,
    }
    add(values, 'externalId', external_id)
    add(values, 'metadata', metadata)
    add(values, 'webhook', webhook)
    add(values, 'options', options)
    if is_admin then
      add(values, 'queue', 'admin')
      stem = admin_stem
    end
    redis.call('HSET', state_key, unpack(values))
    if external_key then redis.call('SET', external_key, transaction_id, 'PX', found.external_ms) end
  else
    redis.call('HSET', state_key, 'status', 'queued', 'label', about.name, 'version', found.version,
      'data', data, 'created', now_text, 'deadline', found.deadline)
  end
  if quota then charge(quota, state_key, size) end
  push(stem, is_admin and 'admin' or 'in', about, transaction_id)
  record_event('started', transaction_id, about)
  return reply.started
end)
write_quotas()
write_batch()
return statuses
