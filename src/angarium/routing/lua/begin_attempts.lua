#!lua
-- Guarantee: counts an attempt at a message before its handler runs, so that the attempt is counted if
-- the process dies. Only the owner of the key counts.
-- Events: none, the end of the message is an event
-- Repeats: safe, the caller gives the number of the attempt
-- include: transition
-- include: attempts
-- include: session
local lost = superseded(uid, session)
return each_item(function(recip_key, message_id, attempt)
  if lost or redis.call('HGET', owners_key, recip_key) ~= uid then return reply.not_owner end
  local record = record_of(recip_key)
  write_record(recip_key, attempt, 0, record and record.watched or 0, message_id, LOST)
  return reply.begun
end)
