#!lua flags=allow-oom
-- Guarantee: under the newest term, entries of the durable intake become pending, oldest first,
-- and leave the intake in the same step. An entry keeps its own id if the id is a UUID4 of this
-- partition and is not pending already. The caller sends the first `sent` of them. After
-- `reply_bytes_max` bytes of payloads no more entries are taken. Messages of a named queue wait for
-- its workers and are not returned.
-- Events: accepted; dead for a message that does not fit into a frame
-- Repeats: no, each call takes other entries; those of a lost reply time out and are due
-- include: transition
-- include: fence
-- include: attempts
-- include: queues
-- include: dead_letter
if fenced_off(term_key, term) then return reply.stale end
local wanted = math.min(item_count, pending_messages_max - redis.call('ZCARD', pending_key))
if wanted <= 0 then return reply.full end
local x4 = '%x%x%x%x'
local uuid4 = '^' .. x4 .. x4 .. '%-' .. x4 .. '%-4%x%x%x%-[89ab]%x%x%x%-' .. x4 .. x4 .. x4 .. '$'
local function usable(id)
  return string.match(id, uuid4) and string.lower(id) == id
    and tonumber(string.sub(id, -4), 16) % partitions == partition
    and not redis.call('ZSCORE', pending_key, id)
end
-- An XADD by others may use any field name. A name that no queue can have is no queue.
local QUEUE = '^%w[%w_.-]*$'
local function read_entry(fields)
  local payload, given, other, queue
  for f = 1, #fields, 2 do
    if fields[f] == 'payload' then
      payload = fields[f + 1]
    elseif fields[f] == 'message_id' then
      given = fields[f + 1]
    elseif fields[f] == 'queue' and #fields[f + 1] <= 64 and string.match(fields[f + 1], QUEUE) then
      queue = fields[f + 1]
    else
      other = other or fields[f + 1]
    end
  end
  return payload or other or given, given, queue
end
-- Entries are read in parts: all of them together may take too much memory.
local PART = 25
local messages, bytes, taken, part, at, named = {}, 0, 0, {}, 0, 0
each_item(function(message_id)
  at = at + 1
  if at > #part and taken < wanted and bytes < reply_bytes_max then
    part = redis.call('XRANGE', inbox_key, '-', '+', 'COUNT', math.min(PART, wanted - taken))
    at = 1
  end
  local entry = part[at]
  if not entry or bytes >= reply_bytes_max then return end
  taken = taken + 1
  local payload, given, queue = read_entry(entry[2])
  if given and usable(given) then message_id = given end
  local due_ms = taken <= sent and now_ms or now_ms - ack_timeout_ms
  redis.call('ZADD', pending_key, string.format('%.0f', due_ms), message_id)
  redis.call('HSET', payloads_key, message_id, payload)
  if taken > sent or queue then redis.call('HSET', attempts_key, message_id, 0) end
  redis.call('XDEL', inbox_key, entry[1])
  note('accepted', message_id, { k = 'inbox' })
  if #payload > payload_bytes_max then
    dead_letter(message_id, 'too large, limits.frame_bytes_max is exceeded')
    note('dead', message_id)
  end
  bytes = bytes + #payload
  if queue then
    named = named + 1
    if #payload <= payload_bytes_max then wait_in_queue(message_id, queue) end
    return
  end
  messages[#messages + 1] = message_id
  messages[#messages + 1] = payload
end)
journal_append('dispatch')
return reply.accepted(named, messages)
