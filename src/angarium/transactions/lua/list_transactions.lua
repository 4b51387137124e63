#!lua flags=no-writes
-- Guarantee: transactions of one status in the order of their list or sorted set ('newest': reversed),
-- all from the same moment. At most `read_max` entries are read per key.
-- KEYS: 3 stem of states; the sorted set, or the queues
-- ARGV: 4 'zset' | 'newest' | 'list', 5 count, 6 read_max, 7 pipeline or '', 8 owner or '',
-- 9 status or ''
-- Returns: per transaction {id, field, value, …}
-- Events: none
-- Repeats: safe
-- include: transition
local kind, count, read_max = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local found = {}

local function matches(filter, value) return filter == '' or filter == value end

for index = 4, #KEYS do
  local ids
  if kind == 'list' then
    ids = redis.call('LRANGE', KEYS[index], 0, read_max - 1)
  else
    ids = redis.call(kind == 'zset' and 'ZRANGE' or 'ZREVRANGE', KEYS[index], 0, read_max - 1)
  end
  for _, id in ipairs(ids) do
    if #found >= count then return found end
    local about = redis.call('HMGET', KEYS[3] .. id, 'label', 'status')
    local pipeline, owner = string.match(about[1] or '', '^[^|]*|([^|]*)|([^|]*)$')
    if pipeline and matches(ARGV[7], pipeline) and matches(ARGV[8], owner)
      and matches(ARGV[9], about[2]) then
      local state = redis.call('HGETALL', KEYS[3] .. id)
      table.insert(state, 1, id)
      found[#found + 1] = state
    end
  end
end
return found
