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
local step_types = {}
for _, each in ipairs(redis.call('ZRANGE', step_types_key, 0, -1)) do
  -- «group|type» says which node group has a type.
  if not string.find(each, '|', 1, true) then step_types[#step_types + 1] = each end
end
return reply.found(step_types, rows)
