#!lua
-- Guarantee: a dead letter is deleted, and the journal has an event for it.
-- KEYS: 3 dead letters (stream)
-- ARGV: 4 number of dead letters, then their entry ids
-- Returns: for each 'discarded' | 'unknown'
-- Events: discarded
-- Repeats: safe, the second call answers 'unknown'
-- include: transition
-- include: dead_letter_entry
local statuses = {}
for i = 1, tonumber(ARGV[4]) do
  local entry = dead_letter_entry(KEYS[3], ARGV[4 + i])
  if entry then
    redis.call('XDEL', KEYS[3], entry[1])
    note('discarded', entry[2][2])
    statuses[i] = 'discarded'
  else
    statuses[i] = 'unknown'
  end
end
journal_append('dispatch')
return statuses
