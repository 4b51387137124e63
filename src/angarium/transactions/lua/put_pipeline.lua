#!lua
-- Guarantee: a version of a pipeline never changes. New transactions use the newest one.
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
note('pipeline_stored', pipeline, { k = node_group, p = pipeline, a = tonumber(version) })
journal_append('transactions')
return reply.stored(version)
