#!lua
-- Guarantee: under the newest term, entries of the durable intake become pending, oldest first,
-- and leave the intake in the same step. An entry keeps its own id if the id is a UUID4 of this
-- partition and is not pending already.
-- KEYS: 3 term counter, 4 pending (zset), 5 payloads (hash), 6 attempts (hash), 7 inbox (stream),
-- 8 dead letters (stream)
-- ARGV: 4 term, 5 ack_timeout_ms, 6 pending_messages_max, 7 sent, 8 payload_bytes_max of a frame,
-- 9 partition, 10 number of partitions, 11 number of ids, then the ids
-- Returns: {'accepted', id, payload, …} | {'full'} | {'stale'}; the caller sends the first `sent`
-- Events: accepted; dead for a message that does not fit into a frame
-- Repeats: no, each call takes other entries; those of a lost reply time out and are due
-- include: transition
-- include: fence
-- include: dead_letter
if fenced_off(KEYS[3], ARGV[4]) then return { 'stale' } end
local sent, partition, partitions = tonumber(ARGV[7]), tonumber(ARGV[9]), tonumber(ARGV[10])
local count = tonumber(ARGV[11])
count = math.min(count, tonumber(ARGV[6]) - redis.call('ZCARD', KEYS[4]))
if count <= 0 then return { 'full' } end
local reply = { 'accepted' }
local x4 = '%x%x%x%x'
local uuid4 = '^' .. x4 .. x4 .. '%-' .. x4 .. '%-4%x%x%x%-[89ab]%x%x%x%-' .. x4 .. x4 .. x4 .. '$'
local function usable(id)
  return string.match(id, uuid4) and string.lower(id) == id
    and tonumber(string.sub(id, -4), 16) % partitions == partition
    and not redis.call('ZSCORE', KEYS[4], id)
end
for i, entry in ipairs(redis.call('XRANGE', KEYS[7], '-', '+', 'COUNT', count)) do
  local id, payload, given, other = ARGV[11 + i], nil, nil, nil
  local fields = entry[2]
  for f = 1, #fields, 2 do
    if fields[f] == 'payload' then
      payload = fields[f + 1]
    elseif fields[f] == 'message_id' then
      given = fields[f + 1]
    else
      other = other or fields[f + 1]
    end
  end
  -- An XADD by others may use any field name.
  payload = payload or other or given
  if given and usable(given) then id = given end
  local due_ms = i <= sent and now_ms or now_ms - tonumber(ARGV[5])
  redis.call('ZADD', KEYS[4], string.format('%.0f', due_ms), id)
  redis.call('HSET', KEYS[5], id, payload)
  if i > sent then redis.call('HSET', KEYS[6], id, 0) end
  redis.call('XDEL', KEYS[7], entry[1])
  note('accepted', id, { k = 'inbox' })
  if #payload > tonumber(ARGV[8]) then
    dead_letter(KEYS[4], KEYS[5], KEYS[6], KEYS[8], id,
      'too large, limits.frame_bytes_max is exceeded')
    note('dead', id)
  end
  reply[#reply + 1] = id
  reply[#reply + 1] = payload
end
journal_append('dispatch')
return reply
