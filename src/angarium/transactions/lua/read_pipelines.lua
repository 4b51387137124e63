#!lua flags=no-writes
-- Guarantee: all pipelines, or one by name, and all step types, from the same moment.
-- KEYS: 3 names of pipelines, 4 stem of pipelines, 5 step types
-- ARGV: 4 name or '' for all
-- Returns: {{step type, …}, {name, field, value, …}, …}
-- Events: none
-- Repeats: safe
-- include: transition
local names = ARGV[4] ~= '' and { ARGV[4] } or redis.call('SMEMBERS', KEYS[3])
local reply = { redis.call('ZRANGE', KEYS[5], 0, -1) }
for _, name in ipairs(names) do
  local fields = redis.call('HGETALL', KEYS[4] .. name)
  if #fields > 0 then
    table.insert(fields, 1, name)
    reply[#reply + 1] = fields
  end
end
return reply
