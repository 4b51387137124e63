#!lua flags=no-writes
-- Guarantee: lists the ids of a recipient's messages in Redis, in any state.
-- KEYS: 3 charted; then the six of the queue
-- ARGV: 4 recipient DID or '' for all, 5 ids_max
-- Returns: {'listed', 'cleared' of the queue, archived, id, …} | {'not_counted'}
-- Events: none
-- Repeats: safe
-- include: transition
-- include: queue
local queue, did, ids_max = queue_at(4), ARGV[4], tonumber(ARGV[5])
if call('EXISTS', KEYS[3]) == 0 then return { 'not_counted' } end
local reply = { 'listed', call('HGET', queue.meta, 'cleared') or '', field(queue, 'archived') }
if did == '' then
  for _, id in ipairs(call('ZRANGE', queue.pending, 0, ids_max - 1)) do
    reply[#reply + 1] = id
  end
else
  local members = call('ZRANGEBYLEX', queue.recipients, '[' .. did .. ' ',
    '(' .. did .. '!', 'LIMIT', 0, ids_max)
  for _, member in ipairs(members) do reply[#reply + 1] = string.match(member, '(%S+)$') end
end
for _, id in ipairs(call('ZRANGE', queue.sending, 0, -1)) do
  if #reply - 3 >= ids_max then break end
  local record = call('HGET', queue.messages, id)
  if record then
    local _, _, dids = header_of(record)
    if did == '' or string.find(' ' .. dids .. ' ', ' ' .. did .. ' ', 1, true) then
      reply[#reply + 1] = id
    end
  end
end
return reply
