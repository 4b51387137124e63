#!lua flags=no-writes
-- Guarantee: lists the ids of a recipient's messages in Redis, in any state.
-- Events: none
-- Repeats: safe
-- include: transition
-- include: queue
local keys = queue_keys(meta_key, messages_key, pending_key, sending_key, recipients_key,
  removed_key)
if call('EXISTS', charted_key) == 0 then return reply.not_counted end
local ids = {}
if did == '' then
  ids = call('ZRANGE', keys.pending, 0, ids_max - 1)
else
  local members = call('ZRANGEBYLEX', keys.recipients, '[' .. did .. ' ',
    '(' .. did .. '!', 'LIMIT', 0, ids_max)
  for i, member in ipairs(members) do ids[i] = string.match(member, '(%S+)$') end
end
for _, id in ipairs(call('ZRANGE', keys.sending, 0, -1)) do
  if #ids >= ids_max then break end
  local record = call('HGET', keys.messages, id)
  if record then
    local _, _, dids = header_of(record)
    if did == '' or string.find(' ' .. dids .. ' ', ' ' .. did .. ' ', 1, true) then
      ids[#ids + 1] = id
    end
  end
end
return reply.listed(field(keys, 'archived'), ids)
