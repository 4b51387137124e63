#!lua
-- Guarantee: a reader's position only moves forward, and the journal is trimmed only up to the
-- position of the slowest reader. A position of '' registers the reader without moving it.
-- KEYS: 3 readers (hash: reader -> id of the last entry it has committed)
-- ARGV: 4 reader, 5 entry id or ''
-- Returns: {'committed', position, entries trimmed}
-- Events: none
-- Repeats: safe
-- include: transition
-- include: stream_id
local position = redis.call('HGET', KEYS[3], ARGV[4]) or '0-0'
if ARGV[5] ~= '' and id_before(position, ARGV[5]) then position = ARGV[5] end
redis.call('HSET', KEYS[3], ARGV[4], position)
local slowest = position
for _, other in ipairs(redis.call('HVALS', KEYS[3])) do
  if id_before(other, slowest) then slowest = other end
end
-- '~' frees only whole nodes of the stream, which is cheap; a few entries that all have read stay.

local trimmed = redis.call('XTRIM', KEYS[1], 'MINID', '~', slowest)
return { 'committed', position, trimmed }
