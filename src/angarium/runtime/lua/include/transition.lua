-- The first lines of every transition: the time, the actor, and the events of its batch.
--   KEYS  1 journal stream, 2 journal meta hash of the same partition
--   ARGV  1 now_ms, or '' to ask Redis   2 actor   3 journal_bytes_max, 0 when it is off; below 0
--         when new work is refused while the journal is full (runtime/transition.py)
-- A script's own KEYS begin at 3 and its own ARGV at 4.
local now_ms = tonumber(ARGV[1])
if not now_ms then
  local time = redis.call('TIME')
  now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
end
local actor = ARGV[2]
local journal_bytes_max = math.abs(tonumber(ARGV[3]))
local journal_rows, journal_count = {}, 0

-- Note one event. `more` holds the optional fields under their short names (runtime/journal.py).
-- The two fields that every event has are concatenated, which costs half as much as a table.
local function note(event, subject, more)
  if journal_bytes_max == 0 then return end
  local row = '{"e":"' .. event .. '","s":' .. cjson.encode(subject)
  local rest = more and next(more) and ',' .. string.sub(cjson.encode(more), 2) or '}'
  journal_count = journal_count + 1
  journal_rows[#journal_rows + 1] = row .. rest
end

-- Note an event whose row is JSON already: for frequent transitions whose ids need no quoting.
local function note_row(row)
  if journal_bytes_max == 0 then return end
  journal_count = journal_count + 1
  journal_rows[#journal_rows + 1] = row
end

-- Note the same event for each of `subjects`, which need no quoting. `rest` is the JSON after them.
-- One concatenation of all costs a fraction of one for each.
local function note_each(event, subjects, rest)
  if journal_bytes_max == 0 or #subjects == 0 then return end
  local first = '{"e":"' .. event .. '","s":"'
  journal_count = journal_count + #subjects
  journal_rows[#journal_rows + 1] = first .. table.concat(subjects, rest .. '\n' .. first) .. rest
end

-- Append the batch's events as one entry. Above the size limit the oldest eighth of the entries is
-- dropped and counted, so that the journal does not fill Redis when no reader runs. Above seven
-- eighths of it the journal is full, if it has readers; commit_reader says when it no longer is.
local function journal_append(module)
  if journal_count == 0 then return end
  local rows = table.concat(journal_rows, '\n')
  local events = redis.call('HINCRBY', KEYS[2], 'events', journal_count)
  local bytes = redis.call('HINCRBY', KEYS[2], 'bytes', #rows)
  redis.call('XADD', KEYS[1], '*', 'v', 1, 'module', module, 'at', string.format('%.0f', now_ms),
    'by', actor, 'n', journal_count, 'seq', events, 'end', bytes, 'rows', rows)
  -- The size is checked once per 1/64 of the limit, because the check reads the first entry.
  local step = math.ceil(journal_bytes_max / 64)
  if math.floor(bytes / step) == math.floor((bytes - #rows) / step) then return end
  local first = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1][2]
  local first_end = tonumber(first[14])
  if bytes - first_end > journal_bytes_max * 7 / 8
    and tonumber(redis.call('HGET', KEYS[2], 'readers') or 0) > 0 then
    redis.call('HSET', KEYS[2], 'full', journal_bytes_max)
  end
  if bytes - first_end <= journal_bytes_max then return end
  local length = redis.call('XLEN', KEYS[1])
  local dropped = redis.call('XTRIM', KEYS[1], 'MAXLEN', math.floor(length * 7 / 8))
  local next_first = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1][2]
  local lost = (tonumber(next_first[12]) - tonumber(next_first[10]))
    - (tonumber(first[12]) - tonumber(first[10]))
  redis.call('HINCRBY', KEYS[2], 'dropped_entries', dropped)
  redis.call('HINCRBY', KEYS[2], 'dropped_events', lost)
end
