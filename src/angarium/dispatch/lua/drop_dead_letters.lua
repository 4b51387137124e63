#!lua flags=allow-oom
-- Guarantee: a dead letter is deleted, and the journal has an event for it.
-- Events: discarded
-- Repeats: safe, the second call answers 'unknown'
-- include: transition
-- include: dead_letter_entry
local replies = each_item(function(entry_id)
  local entry = dead_letter_entry(entry_id)
  if not entry then return reply.unknown end
  redis.call('XDEL', dead_key, entry[1])
  note('discarded', entry[2][2])
  return reply.discarded
end)
journal_append('dispatch')
return replies
