#!lua
-- Guarantee: a start is complete (externalId reserved, state saved, id queued, event counted) or
-- changes nothing. An externalId has one transaction.
-- KEYS: 3 to 5 statistics, 6 stem of qIn, 7 stem of qAdmin, 8 stem of pipelines; per item: state,
-- and the externalId key if the start has one
-- ARGV: 4 notify, 5 work, 6 external_ms, 7 timeout_ms, 8 number of items; per item: id, kind
-- «pipeline|version or nothing for the newest|owner», data, '' or 'more'; after 'more': externalId,
-- metadata, webhook, options, each '' if the start does not have it
-- Returns: per item 'started' | {'duplicate', first id} | 'already_queued' | 'exists' |
-- 'unknown_pipeline' | 'unknown_version'
-- Events: started (module transactions)
-- Repeats: safe, by id
-- include: transition
-- include: transactions
local kinds = {}

local function read_kind(name, version, owner)
  local hash, found = KEYS[8] .. name, nil
  if version == '' then
    found = redis.call('HMGET', hash, 'current', 'group', 'timeout')
  else
    found = redis.call('HMGET', hash, 'current', 'group:' .. version, 'timeout:' .. version)
  end
  if not found[1] then return { refusal = 'unknown_pipeline' } end
  if not found[2] then return { refusal = 'unknown_version' } end
  return {
    version = version == '' and found[1] or version, group = found[2],
    about = label(found[2] .. '|' .. name .. '|' .. owner),
    deadline = string.format('%.0f', now_ms + tonumber(found[3] or ARGV[7])),
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

-- The first argument of each item. One EXISTS covers all items, because each call has a fixed cost.
local count, states, firsts, externals = tonumber(ARGV[8]), {}, {}, {}
local at, key_at = 9, 9
for item = 1, count do
  states[item], firsts[item] = KEYS[key_at], at
  if ARGV[at + 3] == '' then
    at, key_at = at + 4, key_at + 1
  else
    if ARGV[at + 4] ~= '' then
      externals[item] = KEYS[key_at + 1]
      key_at = key_at + 1
    end
    at, key_at = at + 8, key_at + 1
  end
end
local any_exists = count_many('EXISTS', states) > 0

-- The reason to refuse this start, or nil.
local function refusal(id, state, external_key, kind)
  if kind.refusal then return kind.refusal end
  local status = any_exists and redis.call('HGET', state, 'status')
  if status then return status == 'queued' and 'already_queued' or 'exists' end
  if not external_key then return nil end
  local first = redis.call('GET', external_key)
  -- If this is the start's own id, its state has ended and is in the archive.
  if first then return { 'duplicate', first } end
end

-- Saves a state with rare fields. Returns true if the transaction is administrative.
local function save_more(state, kind, first)
  local values = {
    'status', 'queued', 'label', kind.about.name, 'version', kind.version, 'data', ARGV[first + 2],
    'created', now_text, 'deadline', kind.deadline, 'more', 1,
  }
  for index, field in ipairs({ 'externalId', 'metadata', 'webhook', 'options' }) do
    local value = ARGV[first + 3 + index]
    if value ~= '' then
      values[#values + 1] = field
      values[#values + 1] = value
    end
  end
  local admin = string.find(ARGV[first + 7], 'a', 1, true)
  if admin then
    values[#values + 1] = 'queue'
    values[#values + 1] = 'admin'
  end
  redis.call('HSET', state, unpack(values))
  return admin
end

local statuses = {}
for item = 1, count do
  local first, state, external_key = firsts[item], states[item], externals[item]
  local id, kind, admin = ARGV[first], kind_of(ARGV[first + 1]), false
  local refused = refusal(id, state, external_key, kind)
  if refused then
    statuses[item] = refused
  else
    if ARGV[first + 3] == '' then
      redis.call('HSET', state, 'status', 'queued', 'label', kind.about.name, 'version',
        kind.version, 'data', ARGV[first + 2], 'created', now_text, 'deadline', kind.deadline)
    else
      admin = save_more(state, kind, first)
    end
    if external_key then redis.call('SET', external_key, id, 'PX', ARGV[6]) end
    push(KEYS[admin and 7 or 6] .. kind.group, kind.group, id)
    record_event('started', id, kind.about)
    statuses[item] = 'started'
  end
end
write_batch()
return statuses
