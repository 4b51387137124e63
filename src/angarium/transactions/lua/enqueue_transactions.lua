#!lua
-- Guarantee: a transaction is started whole (externalId reserved, state saved, queued, counted) or
-- not at all; a refused start leaves nothing behind, and an externalId has one transaction.
-- KEYS: 3 to 5 statistics, 6 stem of qIn, 7 stem of qAdmin, 8 stem of pipelines; per item: state,
-- externalId (the state again when there is none)
-- ARGV: 4 notify, 5 work, 6 external_ms, 7 timeout_ms, 8 number of items; per item: id, pipeline,
-- version or '' for the newest, owner, externalId, data, metadata, webhook, options
-- Returns: per item 'started' | {'duplicate', first id} | 'already_queued' | 'exists' |
-- 'unknown_pipeline' | 'unknown_version'
-- Events: started (room transactions)
-- Repeats: safe, by id
-- include: transition
-- include: transactions
local pipelines = {}

local function read_pipeline(hash, version)
  local found
  if version == '' then
    found = redis.call('HMGET', hash, 'current', 'group', 'timeout')
  else
    found = redis.call('HMGET', hash, 'current', 'group:' .. version, 'timeout:' .. version)
  end
  if not found[1] then return { refusal = 'unknown_pipeline' } end
  if not found[2] then return { refusal = 'unknown_version' } end
  return {
    version = version == '' and found[1] or version, group = found[2],
    deadline = string.format('%.0f', now_ms + tonumber(found[3] or ARGV[7])),
  }
end

local function pipeline_of(name, version)
  local key = name .. ' ' .. version
  if not pipelines[key] then pipelines[key] = read_pipeline(KEYS[8] .. name, version) end
  return pipelines[key]
end

local function set_rare(state, field, value)
  if value ~= '' then redis.call('HSET', state, field, value, 'more', 1) end
end

-- One question for all, because a call costs more than what it asks: repeats are rare.
local states = {}
for item = 1, tonumber(ARGV[8]) do states[item] = KEYS[7 + 2 * item] end
local any_exists = count_many('EXISTS', states) > 0

-- Why this start is refused, or nil.
local function refusal(id, state, external_key, pipeline)
  if pipeline.refusal then return pipeline.refusal end
  local status = any_exists and redis.call('HGET', state, 'status')
  if status then return status == 'queued' and 'already_queued' or 'exists' end
  if external_key == state then return nil end
  local first = redis.call('GET', external_key)
  if first and first ~= id then return { 'duplicate', first } end
end

local statuses = {}
for item = 1, tonumber(ARGV[8]) do
  local at = 9 * item
  local id, name, owner, external = ARGV[at], ARGV[at + 1], ARGV[at + 3], ARGV[at + 4]
  local state, external_key = KEYS[7 + 2 * item], KEYS[8 + 2 * item]
  local pipeline = pipeline_of(name, ARGV[at + 2])
  local refused = refusal(id, state, external_key, pipeline)
  if refused then
    statuses[item] = refused
  else
    local about = label(pipeline.group .. '|' .. name .. '|' .. owner)
    redis.call('HSET', state, 'status', 'queued', 'label', about.name, 'version', pipeline.version,
      'data', ARGV[at + 5], 'created', now_text, 'deadline', pipeline.deadline)
    set_rare(state, 'externalId', external)
    set_rare(state, 'metadata', ARGV[at + 6])
    set_rare(state, 'webhook', ARGV[at + 7])
    set_rare(state, 'options', ARGV[at + 8])
    if external ~= '' then redis.call('SET', external_key, id, 'PX', ARGV[6]) end
    local admin = string.find(ARGV[at + 8], 'a', 1, true)
    push(KEYS[admin and 7 or 6] .. pipeline.group, pipeline.group, admin and 'admin' or 'in', id)
    tell('started', id, about)
    statuses[item] = 'started'
  end
end
settle()
return statuses
