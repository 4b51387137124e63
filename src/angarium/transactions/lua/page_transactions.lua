#!lua flags=no-writes
-- Guarantee: one page of the transactions in a queue or a sorted set, in its order, all from the same
-- moment. A page reads at most `read_max` entries and has about `bytes_max` bytes, however many
-- entries there are.
-- Events: none
-- Repeats: safe
-- include: transition
local QUEUES = { admin = admin_stem, out = out_stem, ['in'] = in_stem }
local SETS = {
  processing = processing_key, sleeping = sleeping_key, to_archive = to_archive_key,
  waiting = waiting_key, webhooks = webhooks_key, dead = dead_key,
}
local entries, step = nil, 2
if QUEUES[source] then
  entries, step = redis.call('LRANGE', QUEUES[source] .. node_group, first, first + read_max - 1), 1
  -- Behind the list: the entries of owners that take turns.
  local from = math.max(0, first - redis.call('LLEN', QUEUES[source] .. node_group))
  local last = from + read_max - #entries - 1
  local in_turn = fair_stem .. source .. '|' .. node_group
  for _, id in ipairs(last >= from and redis.call('ZRANGE', in_turn, from, last) or {}) do
    entries[#entries + 1] = id
  end
else
  local newest_first = source == 'to_archive' or source == 'dead'
  local command = newest_first and 'ZREVRANGE' or 'ZRANGE'
  entries = redis.call(command, SETS[source], first, first + read_max - 1, 'WITHSCORES')
end
local names = {}
for name in string.gmatch(fields, '%S+') do names[#names + 1] = name end

local function matches(filter, value) return filter == '' or filter == value end
local function contains(value, part) return string.find(value or '', part, 1, true) end

local rows, bytes, read_count = {}, 0, 0
for at = 1, #entries, step do
  if #rows >= limit or bytes > bytes_max then break end
  local state = states_stem .. entries[at]
  local about = redis.call('HMGET', state, 'label', 'status', 'reason')
  local its_pipeline, its_owner = string.match(about[1] or '', '^[^|]*|([^|]*)|([^|]*)$')
  if its_pipeline and matches(pipeline, its_pipeline) and matches(owner, its_owner)
    and matches(status, about[2]) and contains(about[3], reason) then
    local row
    if #names == 0 then
      row = redis.call('HGETALL', state)
    else
      row = redis.call('HMGET', state, unpack(names))
    end
    for index = 1, #row do
      row[index] = row[index] or ''
      bytes = bytes + #row[index]
    end
    rows[#rows + 1] = { entries[at], step == 2 and entries[at + 1] or '', row }
  end
  read_count = read_count + 1
end
local more = read_count * step < #entries or read_count == read_max
return reply.page(more and first + read_count or -1, rows)
