#!lua
-- Guarantee: a version of a pipeline never changes. New transactions use the newest one.
-- KEYS: 3 pipeline, 4 names of pipelines
-- ARGV: 4 name, 5 version or '' for the next, 6 definition, 7 node group, 8 timeout_ms or '',
-- 9 the step types in order, '*' for a step that is a pipeline
-- Returns: {'stored', version} | {'same', version} | {'version_taken', version}
-- Events: pipeline_stored (module transactions)
-- Repeats: safe
-- include: transition
local version = ARGV[5]
local current = redis.call('HGET', KEYS[3], 'current')
if version == '' then
  if current and redis.call('HGET', KEYS[3], 'definition:' .. current) == ARGV[6] then
    return { 'same', current }
  end
  version = string.format('%.0f', tonumber(current or 0) + 1)
end
local stored = redis.call('HGET', KEYS[3], 'definition:' .. version)
if stored then return { stored == ARGV[6] and 'same' or 'version_taken', version } end
redis.call('HSET', KEYS[3], 'definition:' .. version, ARGV[6], 'group:' .. version, ARGV[7],
  'stored:' .. version, string.format('%.0f', now_ms), 'steps:' .. version, ARGV[9])
if ARGV[8] ~= '' then redis.call('HSET', KEYS[3], 'timeout:' .. version, ARGV[8]) end
if not current or tonumber(current) < tonumber(version) then
  redis.call('HSET', KEYS[3], 'current', version, 'group', ARGV[7])
  redis.call('HDEL', KEYS[3], 'timeout')
  if ARGV[8] ~= '' then redis.call('HSET', KEYS[3], 'timeout', ARGV[8]) end
end
redis.call('SADD', KEYS[4], ARGV[4])
note('pipeline_stored', ARGV[4], { k = ARGV[7], p = ARGV[4], a = tonumber(version) })
journal_append('transactions')
return { 'stored', version }
