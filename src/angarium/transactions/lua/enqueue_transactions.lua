#!lua
-- Guarantee: a start is complete (externalId reserved, state saved, id queued, event counted) or
-- changes nothing. An externalId has one transaction.
-- Events: started (module transactions)
-- Repeats: safe, by id
-- include: transition
-- include: transactions
local kinds = {}
-- How many more the queue of a group takes. Transactions that wait for a step type count too.
local rooms = {}
local function room_of(group)
  if not rooms[group] then
    local length = redis.call('LLEN', in_stem .. group)
    rooms[group] = { left = queue_max - length - redis.call('ZCARD', wait_stem .. 'deadlines') }
  end
  return rooms[group]
end

local function read_kind(name, version, owner)
  local hash, found = pipelines_stem .. name, nil
  if version == '' then
    found = redis.call('HMGET', hash, 'current', 'group', 'timeout')
  else
    found = redis.call('HMGET', hash, 'current', 'group:' .. version, 'timeout:' .. version)
  end
  if not found[1] then return { about = {}, refusal = reply.unknown_pipeline } end
  if not found[2] then return { about = {}, refusal = reply.unknown_version } end
  return {
    version = version == '' and found[1] or version, group = found[2], room = room_of(found[2]),
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
    kind = read_kind(string.match(text, '^([^|]*)|([^|]*)|([^|]*)$'))
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
  if not is_admin then
    local room = found.room
    if room.left <= 0 then return reply.queue_full end
    room.left = room.left - 1
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
  push(stem .. found.group, found.group, transaction_id)
  record_event('started', transaction_id, about)
  return reply.started
end)
write_batch()
return statuses
