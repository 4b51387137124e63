#!lua flags=no-writes
-- Guarantee: one page of the transactions in a list or a sorted set, in its order, without their
-- data. A page reads at most `read_max` entries, however many there are.
-- KEYS: 3 stem of states, 4 the list or the sorted set
-- ARGV: 4 'zset' | 'newest' | 'list', 5 first, 6 count, 7 read_max, 8 pipeline or '',
-- 9 owner or '', 10 status or '', 11 number of fields; the names of the fields
-- Returns: {first of the next page or -1, {id, score or '', field, …}, …}
-- Events: none
-- Repeats: safe
-- include: transition
local kind, first, count, read_max = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local fields = {}
for index = 1, tonumber(ARGV[11]) do fields[index] = ARGV[11 + index] end

local entries, step = nil, 2
if kind == 'list' then
  entries, step = redis.call('LRANGE', KEYS[4], first, first + read_max - 1), 1
else
  local command = kind == 'zset' and 'ZRANGE' or 'ZREVRANGE'
  entries = redis.call(command, KEYS[4], first, first + read_max - 1, 'WITHSCORES')
end

local function matches(filter, value) return filter == '' or filter == value end

local found, read_count = { -1 }, 0
for at = 1, #entries, step do
  if #found > count then break end
  local state = KEYS[3] .. entries[at]
  local about = redis.call('HMGET', state, 'label', 'status')
  local pipeline, owner = string.match(about[1] or '', '^[^|]*|([^|]*)|([^|]*)$')
  if pipeline and matches(ARGV[8], pipeline) and matches(ARGV[9], owner)
    and matches(ARGV[10], about[2]) then
    local row = redis.call('HMGET', state, unpack(fields))
    for index = 1, #fields do row[index] = row[index] or '' end
    table.insert(row, 1, step == 2 and entries[at + 1] or '')
    table.insert(row, 1, entries[at])
    found[#found + 1] = row
  end
  read_count = read_count + 1
end
if read_count * step < #entries or read_count == read_max then found[1] = first + read_count end
return found
