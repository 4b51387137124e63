#!lua flags=no-writes
-- Guarantee: all pipelines, or one by name, and all step types, from the same moment.
-- Events: none
-- Repeats: safe
-- include: transition
local names = name ~= '' and { name } or redis.call('SMEMBERS', names_key)
local rows = {}
for _, each in ipairs(names) do
  local fields = redis.call('HGETALL', pipelines_stem .. each)
  if #fields > 0 then
    table.insert(fields, 1, each)
    rows[#rows + 1] = fields
  end
end
return reply.found(redis.call('ZRANGE', step_types_key, 0, -1), rows)
