#!lua
-- Guarantee: a version of a pipeline never changes, and ends only when no open transaction has it. New
-- transactions use the newest one.
-- Events: pipeline_stored (module transactions)
-- Repeats: safe
-- include: transition
redis.call('SADD', groups_key, node_group)
local current = redis.call('HGET', pipeline_key, 'current')
if version == '' then
  if current and redis.call('HGET', pipeline_key, 'definition:' .. current) == definition then
    return reply.same(current)
  end
  version = string.format('%.0f', tonumber(current or 0) + 1)
end
local stored = redis.call('HGET', pipeline_key, 'definition:' .. version)
if stored then return stored == definition and reply.same(version) or reply.version_taken(version) end
redis.call('HSET', pipeline_key, 'definition:' .. version, definition, 'group:' .. version, node_group,
  'stored:' .. version, string.format('%.0f', now_ms), 'steps:' .. version, steps)
if timeout_ms ~= '' then redis.call('HSET', pipeline_key, 'timeout:' .. version, timeout_ms) end
if not current or tonumber(current) < tonumber(version) then
  redis.call('HSET', pipeline_key, 'current', version, 'group', node_group)
  redis.call('HDEL', pipeline_key, 'timeout')
  if timeout_ms ~= '' then redis.call('HSET', pipeline_key, 'timeout', timeout_ms) end
end
redis.call('SADD', names_key, pipeline)

-- A version ends when newer ones fill the limit and no open transaction can have it any more: the one
-- that replaced it is older than the longest time that a transaction or dead letter may take.
local numbers = {}
for _, field in ipairs(redis.call('HKEYS', pipeline_key)) do
  local number = string.match(field, '^definition:(%d+)$')
  if number then numbers[#numbers + 1] = tonumber(number) end
end
table.sort(numbers)
for index = 1, #numbers - versions_max do
  local old, newer = string.format('%.0f', numbers[index]), string.format('%.0f', numbers[index + 1])
  local timeout = redis.call('HGET', pipeline_key, 'timeout:' .. old)
  local replaced_ms = redis.call('HGET', pipeline_key, 'stored:' .. newer)
  if now_ms - tonumber(replaced_ms or now_ms) < (tonumber(timeout) or default_ms) + dead_ms then break end
  redis.call('HDEL', pipeline_key, 'definition:' .. old, 'group:' .. old, 'stored:' .. old,
    'steps:' .. old, 'timeout:' .. old)
end
note('pipeline_stored', pipeline, { k = node_group, p = pipeline, a = tonumber(version) })
journal_append('transactions')
return reply.stored(version)
